"""The base classes of sources of environments, the choices of ``env.source``."""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from torchrl.envs import EnvBase

from recurrl.config.env import EnvConfig, wrapper_and_arguments
from recurrl.config.plugins import factory, load, yaml_values
from recurrl.envs.arguments import check_arguments
from recurrl.envs.batched import SingleEnv
from recurrl.envs.checks import making
from recurrl.envs.gymnasium_envs import InlineEnv
from recurrl.errors import ConfigError, require

_OF_SOME = ("packages", "wrappers", "max_episode_steps", "action_mask_from_info", "kwargs")
"""Options that some sources do not support; the others work with every source."""


class Source(ABC):
    """Makes the environments of a run. A custom one needs only :meth:`make`.

    To add options, annotate the constructor's first parameter with a dataclass derived from ``EnvConfig``.

    Args:
        options: the environment's options.

    Attributes:
        options: the environment's options.
        supported_options: which of ``packages``, ``wrappers``, ``max_episode_steps``, ``action_mask_from_info`` and
            ``kwargs`` this source supports. Every source supports the other options of ``env=gym``.
        is_simulator: true if :meth:`make` returns the process's only simulator, with ``env.num_envs`` environments.
    """

    supported_options: Collection[str] = ()
    is_simulator: bool = False

    def __init__(self, options: EnvConfig) -> None:
        self.options = options

    @abstractmethod
    def make(self, num_envs: int) -> EnvBase:
        """An environment of batch size ``[num_envs]`` with the entries ``observation``, ``action`` and ``reward``.

        Its values are raw: a :class:`recurrl.envs.policy_env.PolicyEnv` around it hides and adds entries and scales
        actions. A :class:`recurrl.envs.BatchedEnv` is several times as fast as other environments of TorchRL.

        Raises:
            ConfigError: the environment cannot be made as configured.
        """

    def plain(self) -> gymnasium.Env[Any, Any]:
        """One environment with Gymnasium's interface, for the user of a trained policy."""
        return SingleEnv(self.make(1))

    def check(self) -> None:
        """Rejects unsupported options, before any environment is made.

        Raises:
            ConfigError: an option is unsupported; the message says what to set.
        """
        unused = yaml_values("env", "gym")
        for name in _OF_SOME:
            value = getattr(self.options, name)
            if name not in self.supported_options and value != unused[name]:
                got, instead = (json.dumps(each, default=str).strip('"') for each in (value, unused[name]))
                raise ConfigError(f"env.{name} must be {instead} with env.source={self.options.source} (got {got}).")

    def episode_limit(self) -> int | None:
        """The steps after which an episode is truncated; None if unknown."""
        return self.options.max_episode_steps


class GymnasiumSource(Source):
    """A source of single Gymnasium environments. A custom one needs only :meth:`create`.

    The environments are stepped in turn in this process, and everything they return is checked.
    """

    supported_options: Collection[str] = ("wrappers", "max_episode_steps", "action_mask_from_info")

    @abstractmethod
    def create(self) -> gymnasium.Env[Any, Any]:
        """One environment, without the configured time limit and wrappers."""

    def check(self) -> None:
        """Rejects unsupported options, and wrappers that do not exist."""
        super().check()
        for entry in self.options.wrappers:
            _wrapper(entry)

    def make(self, num_envs: int) -> EnvBase:
        """The environments as one batched environment."""
        return self.inline([self.create_named() for _ in range(num_envs)])

    def inline(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> InlineEnv:
        """Environments that :meth:`create` made, as one batched environment."""
        options = self.options
        distinct = len({id(env.unwrapped) for env in envs}) == len(envs)
        require(distinct, f"env.id={options.id} must make a new environment at each call (got the same one twice).")
        return InlineEnv([self.wrap(env) for env in envs], options.id, options.action_mask_from_info)

    def plain(self) -> gymnasium.Env[Any, Any]:
        """One environment as the user defined it, within the configured wrappers and time limit.

        Raises:
            ConfigError: a package is missing, a wrapper does not fit, or the environment declares no spaces.
            EnvError: the environment's constructor raised.
        """
        return self.wrap(self.create_named())

    def create_named(self, **arguments: Any) -> Any:
        """Calls :meth:`create`; errors name the environment."""
        options = self.options
        with making(f"env.id={options.id}" + (f" with env.kwargs={options.kwargs}" if options.kwargs else "")):
            return self.create(**arguments)

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """The environment within the configured wrappers, the last one outermost, and then the time limit."""
        options = self.options
        for name, wrapper in map(_wrapper, options.wrappers):
            with making(f"env.wrappers={name} around env.id={options.id}"):
                env = wrapper(env)
        if options.max_episode_steps is not None:
            env = TimeLimit(env, options.max_episode_steps)
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), spaces.Space):
                raise ConfigError(f"env.id={options.id} must have an {name} (got none). Set it in its constructor.")
        return env


def source_of(config: EnvConfig) -> Source:
    """The source that ``env.source`` names.

    Raises:
        ConfigError: no such source exists, or it is not a :class:`Source`.
    """
    source = factory("env", config.source)(config)
    if not isinstance(source, Source):
        raise ConfigError(
            f"env.source={config.source} must make a recurrl.envs.Source (got a {type(source).__name__}). Derive from "
            "recurrl.envs.GymnasiumSource or recurrl.envs.Source."
        )
    return source


def _wrapper(entry: Any) -> tuple[str, Callable[..., gymnasium.Env[Any, Any]]]:
    """The name of an entry of ``env.wrappers``, and what makes its wrapper around an environment.

    Raises:
        ConfigError: the entry does not name a wrapper of Gymnasium, or its arguments do not fit.
    """
    name, arguments = wrapper_and_arguments(entry)
    setting = f"env.wrappers={name}"
    wrapper = load(name, setting)
    if not (inspect.isclass(wrapper) and issubclass(wrapper, gymnasium.Wrapper)):
        raise ConfigError(f"env.wrappers must be classes derived from gymnasium.Wrapper (got {name}).")
    check_arguments(wrapper, ["env", *arguments], setting)
    return name, partial(wrapper, **arguments)
