"""Environments of Gymnasium's interface, or TorchRL's: by a registered id, or by the class or function that makes them.

What is made decides how it is stepped: single environments in turn, a vector environment in one call.
"""

import logging
import sys
from abc import abstractmethod
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv
from torchrl.envs import EnvBase, SerialEnv

from recurrl.config.env import NATIVE, EnvConfig
from recurrl.config.plugins import choice_for, import_custom, load, nearest
from recurrl.envs.arguments import check_arguments, parameters_of
from recurrl.envs.checks import making
from recurrl.envs.gymnasium_source import GymnasiumSource
from recurrl.envs.native import NativeVectorEnv
from recurrl.envs.passed import PassedEnv
from recurrl.envs.single import SingleEnv
from recurrl.envs.source import Source
from recurrl.errors import ConfigError, require

logger = logging.getLogger(__name__)


def make(options: EnvConfig) -> Source:
    """The source of ``env.id``: a registered id, also as ``module:Id``; or ``module:Name``, a class or function.

    Raises:
        ConfigError: a package is missing, or there is no such name in the module.
    """
    maker = _maker_of(options)
    return Registered(options) if maker is None else Made(options, maker)


def _maker_of(options: EnvConfig) -> Callable[..., Any] | None:
    """The class or function that makes the environment; None for a registered id."""
    if isinstance(options, PassedEnv):
        return options.maker
    require(
        not options.id.startswith("<"),
        f"env.id={options.id} was passed to recurrl.train as an object, which no run can save. Pass it again: "
        'recurrl.train("resume=RUN", env=...), recurrl.load(RUN, env=...); or put it into a module and give '
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
    """Logs each warning of MuJoCo once, which would write them all to MUJOCO_LOG.TXT in the working folder."""
    if mujoco := sys.modules.get("mujoco"):  # imported with the class or entry point
        mujoco.set_mju_user_warning(_warn_once)


class _Environments(GymnasiumSource):
    """What :meth:`create` makes: single environments, or all in one that is stepped in one call."""

    honours = (*GymnasiumSource.honours, "packages", "kwargs")
    single_only: tuple[str, ...] = ("wrappers",)
    """Options of single environments, which a vector environment cannot have."""

    @abstractmethod
    def create(self, num_envs: int = 1) -> Any:
        """A new environment: one, or if it steps several in one call, ``num_envs`` of them."""

    def make(self, num_envs: int) -> EnvBase:
        """The environments as one of batch size ``[num_envs]``."""
        made, options = self.created(num_envs=num_envs), self.options
        if isinstance(made, gymnasium.Env):
            return self.inline([made, *(self.created() for _ in range(num_envs - 1))])
        is_vector = isinstance(made, VectorEnv)
        self.check_single_only("vector environment" if is_vector else "environment of TorchRL")
        return NativeVectorEnv(made, options.id, options.action_mask_from_info) if is_vector else made

    def plain(self) -> gymnasium.Env[Any, Any]:
        """One environment as its user knows it, within the wrappers of the configuration."""
        made = self.created()
        if isinstance(made, gymnasium.Env):
            return self.wrapped(made)
        is_vector, masked = isinstance(made, VectorEnv), self.options.action_mask_from_info
        return SingleEnv(NativeVectorEnv(made, self.options.id, masked) if is_vector else made)

    def check_single_only(self, kind: str) -> None:
        """Rejects options of single environments where all are stepped in one call."""
        options = self.options
        instead = ", or choose env.vectorization=inline" if options.vectorization == NATIVE else ""
        for name in self.single_only:
            require(
                not getattr(options, name),
                f"env.{name} works on single environments, but env.id={options.id} makes one {kind}. Leave it "
                f"out{instead}.",
            )


class Made(_Environments):
    """What a class or function makes.

    With a parameter ``num_envs`` it makes all environments at once: a vector environment of Gymnasium, or an
    environment of TorchRL with that batch size. Without one it makes a single environment at each call.

    Args:
        options: as configured.
        maker: the class or function.
    """

    single_only = (*_Environments.single_only, "max_episode_steps")

    def __init__(self, options: EnvConfig, maker: Callable[..., Any]) -> None:
        super().__init__(options)
        self._maker, self._id = maker, f"env.id={options.id}"
        require(callable(maker), f"{self._id} must name a class or function (got {maker!r:.60}).")
        self._takes_count = "num_envs" in (parameters_of(maker) or ())

    def check(self) -> None:
        """Rejects arguments that do not fit."""
        super().check()
        check_arguments(self._maker, self.options.kwargs, self._id, "env.kwargs.", ours=("num_envs",))

    def create(self, num_envs: int = 1) -> Any:
        """What is made, of a kind and number that can be stepped."""
        kwargs = self.options.kwargs
        _log_warnings_of_mujoco()
        made = self._maker(num_envs=num_envs, **kwargs) if self._takes_count else self._maker(**kwargs)
        kind = type(made).__name__
        require(
            isinstance(made, gymnasium.Env | VectorEnv | EnvBase),
            f"{self._id} makes a {kind}. Have it return an environment of Gymnasium or TorchRL.",
        )
        if isinstance(made, gymnasium.Env) or (isinstance(made, EnvBase) and not made.batch_size):
            require(
                not self._takes_count,
                f"{self._id} takes num_envs but makes a single {kind}. Have it make a vector environment, or leave "
                "that parameter out.",
            )
            if isinstance(made, gymnasium.Env):
                return made
            made.close()
            return SerialEnv(num_envs, partial(self._maker, **kwargs))
        found = made.num_envs if isinstance(made, VectorEnv) else made.batch_size.numel()
        advice = "Have it make as many." if self._takes_count else "Give it a parameter num_envs, and make as many."
        require(found == num_envs, f"{self._id} makes {found} environments where {num_envs} are needed. {advice}")
        return made


class Registered(_Environments):
    """Registered ids, ``Id-v0`` or ``module:Id-v0``: single environments, or the id's own vector environment."""

    honours = (*_Environments.honours, "vectorization")

    def check(self) -> None:
        """Rejects ids that are not registered as requested, missing packages, and arguments that do not fit.

        Raises:
            ConfigError: with similar names, or the pip command.
        """
        super().check()
        options, spec = self.options, self.spec()
        if options.vectorization == NATIVE:
            require(
                spec.vector_entry_point is not None,
                f"env.vectorization={NATIVE} steps all environments in one call, but env.id={options.id} has no "
                "vector_entry_point. Choose env.vectorization=inline, or register the id with one.",
            )
            self.check_single_only("vector environment")
        require(
            options.vectorization == NATIVE or spec.entry_point is not None,
            f"env.id={options.id} is registered only with a vector_entry_point, so single environments cannot be "
            f"made. Give env.vectorization={NATIVE}.",
        )
        creator = self._creator(spec)
        kwargs = {**spec.kwargs, **self._arguments(creator)}
        check_arguments(creator, kwargs, f"env.id={options.id}", "env.kwargs.", ours=("num_envs",))

    def spec(self) -> EnvSpec:
        """The registered specification of the id.

        Raises:
            ConfigError: the id is not registered.
        """
        name = self.options.id.rpartition(":")[2]
        if name not in gymnasium.registry:
            near, choice = nearest(name, sorted(gymnasium.registry)), choice_for(name)
            advice = f" Did you mean {near}?" if near else ""
            if choice not in ("gym", self.options.name):
                advice = f" Give env={choice} env.id={name}."
            raise ConfigError(
                f"env.id={self.options.id} is not registered with Gymnasium.{advice} If another package registers it, "
                "give env.packages=[package]."
            )
        return gymnasium.spec(name)

    def _creator(self, spec: EnvSpec) -> Callable[..., Any]:
        entry_point: Any = spec.vector_entry_point if self.options.vectorization == NATIVE else spec.entry_point
        with making(f"env.id={self.options.id}"):
            return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point

    def _arguments(self, creator: Callable[..., Any]) -> dict[str, Any]:
        """The configured arguments. A vector environment gets the autoreset that we use."""
        resets = self.options.vectorization == NATIVE and "autoreset_mode" in (parameters_of(creator) or ())
        return ({"autoreset_mode": AutoresetMode.SAME_STEP} if resets else {}) | self.options.kwargs

    def episode_limit(self) -> int | None:
        """The steps after which an episode is truncated; None if unknown."""
        return self.options.max_episode_steps or self.spec().max_episode_steps

    def create(self, num_envs: int = 1) -> Any:
        """One environment, with the registered time limit unless the configuration has its own; or a vector of them."""
        options, spec = self.options, self.spec()
        creator, limit = self._creator(spec), options.max_episode_steps
        _log_warnings_of_mujoco()
        if options.vectorization != NATIVE:
            own = None if limit is None else -1
            return gymnasium.make(spec.id, own, disable_env_checker=True, **options.kwargs)
        arguments = self._arguments(creator) | ({} if limit is None else {"max_episode_steps": limit})
        return gymnasium.make_vec(spec.id, num_envs, NATIVE, **arguments)
