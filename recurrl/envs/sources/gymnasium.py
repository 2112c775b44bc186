"""Environments of Gymnasium's interface, or TorchRL's: by a registered id, or by the class or function that makes them.

Single environments are stepped in turn, a vector environment in one call.
"""

import logging
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv
from torchrl.envs import EnvBase, SerialEnv

from recurrl.config import EnvConfig
from recurrl.config.plugins import choice_for, import_custom, load, suggestion
from recurrl.envs.arguments import check_arguments, parameters_of
from recurrl.envs.batched import SingleEnv
from recurrl.envs.checks import making
from recurrl.envs.gymnasium_envs import GymnasiumVectorEnv
from recurrl.envs.passed_env import PassedEnv
from recurrl.envs.source import GymnasiumSource, Source
from recurrl.errors import ConfigError, require

logger = logging.getLogger(__name__)

SUPPORTED_OPTIONS = (*GymnasiumSource.supported_options, "packages", "kwargs")


def make(options: EnvConfig) -> Source:
    """The source of ``env.id``: a registered id, also as ``module:Id``; or ``module:Name``, a class or function.

    Raises:
        ConfigError: a package is missing, or the module has no such name.
    """
    maker = maker_of(options)
    return RegisteredSource(options) if maker is None else CallableSource(options, maker)


def maker_of(options: EnvConfig) -> Callable[..., Any] | None:
    """The class or function that makes the environment; None for a registered id."""
    if isinstance(options, PassedEnv):
        return options.maker
    require(
        not options.id.startswith("<"),
        f"env.id={options.id} was passed to recurrl.train as an object, which no run can save. Pass it again: "
        'recurrl.train("resume=RUN", env=...), recurrl.load(RUN, env=...); or put it into a module and set '
        "env.id=module:Name.",
    )
    for package in options.packages:
        import_custom(package, f"env.packages=[{package}]")
    module, colon, name = options.id.rpartition(":")
    if colon:
        import_custom(module, f"env.id={options.id}")
    if not colon or name in gymnasium.registry or not all(part.isidentifier() for part in name.split(".")):
        return None
    return load(options.id, f"env.id={options.id}")


_warn_once = cache(partial(logger.warning, "MuJoCo: %s"))


def _log_warnings_of_mujoco() -> None:
    """Logs each MuJoCo warning once; MuJoCo would write all of them to MUJOCO_LOG.TXT in the working folder."""
    if mujoco := sys.modules.get("mujoco"):  # imported with the class or entry point
        mujoco.set_mju_user_warning(_warn_once)


class CallableSource(GymnasiumSource):
    """Environments that a class or function makes.

    If it has a parameter ``num_envs``, it makes all environments at once: a vector environment of Gymnasium, or an
    environment of TorchRL with that batch size. Otherwise it makes a single environment at each call.

    Args:
        options: the environment's options.
        maker: the class or function.
    """

    supported_options = SUPPORTED_OPTIONS

    def __init__(self, options: EnvConfig, maker: Callable[..., Any]) -> None:
        super().__init__(options)
        self._maker, self._id = maker, f"env.id={options.id}"
        require(callable(maker), f"{self._id} must name a class or function (got {maker!r:.60}).")
        self._takes_count = "num_envs" in (parameters_of(maker) or ())

    def check(self) -> None:
        """Rejects arguments that do not fit."""
        super().check()
        check_arguments(self._maker, self.options.kwargs, self._id, "env.kwargs.", ours=("num_envs",))

    def make(self, num_envs: int) -> EnvBase:
        """The environments as one batched environment."""
        env = self.create_named(num_envs=num_envs)
        if isinstance(env, gymnasium.Env):
            return self.inline([env, *(self.create_named() for _ in range(num_envs - 1))])
        return self._batched(env)

    def plain(self) -> gymnasium.Env[Any, Any]:
        """One environment with Gymnasium's interface, within the configured wrappers and time limit."""
        env = self.create_named()
        return self.wrap(env) if isinstance(env, gymnasium.Env) else SingleEnv(self._batched(env))

    def _batched(self, env: VectorEnv[Any, Any, Any] | EnvBase) -> EnvBase:
        """Makes a batched environment of environments that are stepped in one call."""
        options, is_vector = self.options, isinstance(env, VectorEnv)
        kind = "vector environment" if is_vector else "environment of TorchRL"
        for name in ("wrappers", "max_episode_steps"):
            require(
                not getattr(options, name),
                f"env.{name} works on single environments, but {self._id} makes one {kind}. Leave it out.",
            )
        return GymnasiumVectorEnv(env, options.id, options.action_mask_from_info) if is_vector else env

    def create(self, num_envs: int = 1) -> Any:
        """Calls the class or function, and checks the kind and number of environments that it makes."""
        kwargs = self.options.kwargs
        _log_warnings_of_mujoco()
        env = self._maker(num_envs=num_envs, **kwargs) if self._takes_count else self._maker(**kwargs)
        kind = type(env).__name__
        require(
            isinstance(env, gymnasium.Env | VectorEnv | EnvBase),
            f"{self._id} must make an environment of Gymnasium or TorchRL (got a {kind}). Return one from it.",
        )
        is_one_of_torchrl = isinstance(env, EnvBase) and not env.batch_size
        require(
            not (self._takes_count and (is_one_of_torchrl or isinstance(env, gymnasium.Env))),
            f"{self._id} takes num_envs but makes a single {kind}. Have it make a vector environment, or leave that "
            "parameter out.",
        )
        if is_one_of_torchrl:
            env.close()
            return SerialEnv(num_envs, partial(self._maker, **kwargs))
        return env


class RegisteredSource(GymnasiumSource):
    """Single environments by their registered id, ``Id-v0`` or ``module:Id-v0``."""

    supported_options = SUPPORTED_OPTIONS

    def check(self) -> None:
        """Rejects ids that are not registered, missing packages, and arguments that do not fit.

        Raises:
            ConfigError: the message suggests similar names, or the pip command to run.
        """
        super().check()
        spec, setting = self.spec(), f"env.id={self.options.id}"
        require(
            spec.entry_point is not None,
            f"{setting} is registered only with a vector_entry_point, which makes no single environments. Set env.id "
            "to the class of its vector environment, as module:Class.",
        )
        with making(setting):
            creator: Any = spec.entry_point
            creator = load_env_creator(creator) if isinstance(creator, str) else creator
        check_arguments(creator, {**spec.kwargs, **self.options.kwargs}, setting, "env.kwargs.")

    def spec(self) -> EnvSpec:
        """The registered specification of the id.

        Raises:
            ConfigError: the id is not registered.
        """
        name = self.options.id.rpartition(":")[2]
        if name not in gymnasium.registry:
            choice, advice = choice_for(name), suggestion(name, sorted(gymnasium.registry))
            if choice not in ("gym", self.options.name):
                advice = f" Use env={choice} env.id={name}."
            raise ConfigError(
                f"env.id={self.options.id} is not registered with Gymnasium.{advice} If another package registers it, "
                "set env.packages=[package]."
            )
        return gymnasium.spec(name)

    def episode_limit(self) -> int | None:
        """The steps after which an episode is truncated; None if unknown."""
        return self.options.max_episode_steps or self.spec().max_episode_steps

    def create(self) -> gymnasium.Env[Any, Any]:
        """One environment, with the registered time limit unless the configuration has its own."""
        _log_warnings_of_mujoco()
        limit = None if self.options.max_episode_steps is None else -1
        return gymnasium.make(self.spec().id, limit, disable_env_checker=True, **self.options.kwargs)
