"""Sources that make single Gymnasium environments."""

import inspect
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from torchrl.envs import EnvBase

from recurrl.config.env import wrapper_and_arguments
from recurrl.config.plugins import load
from recurrl.envs.arguments import check_arguments
from recurrl.envs.checks import making
from recurrl.envs.inline import InlineEnv
from recurrl.envs.source import Source
from recurrl.errors import ConfigError


class GymnasiumSource(Source):
    """A source of single Gymnasium environments. A custom one needs only :meth:`create`.

    The environments are stepped in turn in this process, and everything they return is checked.
    """

    honours: Collection[str] = ("wrappers", "max_episode_steps", "action_mask_from_info")

    @abstractmethod
    def create(self) -> gymnasium.Env[Any, Any]:
        """One environment, without the time limit and the wrappers of the configuration."""

    def check(self) -> None:
        """Rejects what cannot be honoured, and wrappers that do not exist."""
        super().check()
        _load_wrappers(self.options.wrappers)

    def make(self, num_envs: int) -> EnvBase:
        """The environments as one of batch size ``[num_envs]``."""
        return self.inline([self.created() for _ in range(num_envs)])

    def inline(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> InlineEnv:
        """Single environments, as :meth:`create` made them, as one of as many."""
        options = self.options
        return InlineEnv([self.wrapped(env) for env in envs], options.id, options.action_mask_from_info)

    def plain(self) -> gymnasium.Env[Any, Any]:
        """One environment as its user knows it: within the time limit and the wrappers of the configuration.

        Raises:
            ConfigError: a package is missing, a wrapper does not fit, or it has no spaces.
            EnvError: the environment's constructor raised.
        """
        return self.wrapped(self.created())

    def created(self, **arguments: Any) -> Any:
        """What :meth:`create` makes; what it raises names the environment."""
        options = self.options
        with making(f"env.id={options.id}" + (f" with env.kwargs={options.kwargs}" if options.kwargs else "")):
            return self.create(**arguments)

    def wrapped(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """A single environment within the time limit and the wrappers of the configuration, the last one outermost."""
        options = self.options
        for name, wrapper, arguments in _load_wrappers(options.wrappers):
            with making(f"env.wrappers={name} around env.id={options.id}"):
                env = wrapper(env, **arguments)
        if options.max_episode_steps is not None:
            env = TimeLimit(env, options.max_episode_steps)
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), spaces.Space):
                raise ConfigError(f"{options.id} has no {name}. Set one in its constructor.")
        return env


def _load_wrappers(
    entries: Sequence[Any],
) -> list[tuple[str, type[gymnasium.Wrapper[Any, Any, Any, Any]], dict[str, Any]]]:
    """The name, class and arguments of each entry of ``env.wrappers``.

    Raises:
        ConfigError: an entry does not name a wrapper of Gymnasium, or its arguments do not fit.
    """
    found = []
    for entry in entries:
        name, arguments = wrapper_and_arguments(entry)
        setting = f"env.wrappers={name}"
        wrapper = load(name, setting)
        if not (inspect.isclass(wrapper) and issubclass(wrapper, gymnasium.Wrapper)):
            raise ConfigError(
                f"{setting} is not a wrapper of single environments. Give a class derived from gymnasium.Wrapper."
            )
        check_arguments(wrapper, ["env", *arguments], setting)
        found.append((name, wrapper, arguments))
    return found
