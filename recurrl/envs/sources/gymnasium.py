"""Environments registered with Gymnasium: single ones, or the id's own vector environment."""

import inspect
from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode
from torchrl.envs import EnvBase

from recurrl.config.env import NATIVE
from recurrl.config.plugins import choice_for, import_custom, nearest
from recurrl.envs.arguments import check_arguments
from recurrl.envs.faults import making
from recurrl.envs.gymnasium_source import GymnasiumSource
from recurrl.envs.native import NativeVectorEnv
from recurrl.errors import ConfigError

_SINGLE_ONLY = ("wrappers", "previous_action", "previous_reward", "action_mask_from_info")


class Registered(GymnasiumSource):
    """Registered ids, ``Id-v0`` or ``module:Id-v0``."""

    honours = (*GymnasiumSource.honours, "packages", "kwargs", "vectorization")

    def check(self) -> None:
        """Rejects ids that are not registered as requested, missing packages, and arguments that do not fit.

        Raises:
            ConfigError: with similar names, or the pip command.
        """
        super().check()
        options, spec = self.options, self.spec()
        if options.vectorization == NATIVE:
            self._check_vectorization(spec)
        elif spec.entry_point is None:
            raise ConfigError(
                f"env.id={options.id} is registered only with a vector_entry_point, so single environments cannot be "
                f"made. Give env.vectorization={NATIVE}."
            )
        creator = self._creator(spec)
        given = {**spec.kwargs, **self._arguments(creator)}
        check_arguments(creator, given, f"env.id={options.id}", "env.kwargs.", ours=("num_envs",))

    def _check_vectorization(self, spec: EnvSpec) -> None:
        options = self.options
        if spec.vector_entry_point is None:
            raise ConfigError(
                f"env.vectorization={NATIVE} steps all environments in one call, but env.id={options.id} has no "
                "vector_entry_point. Choose env.vectorization=inline, or register the id with one."
            )
        for name in _SINGLE_ONLY:
            if getattr(options, name):
                raise ConfigError(
                    f"env.{name} works on single environments, but env.vectorization={NATIVE} makes one vector "
                    "environment. Leave it out, have the vector environment do the same, or choose "
                    "env.vectorization=inline."
                )

    def spec(self) -> EnvSpec:
        """The registered specification of the id. The packages that register it are imported first.

        Raises:
            ConfigError: a package is missing, or the id is not registered.
        """
        options = self.options
        module, colon, name = options.id.rpartition(":")
        for package in options.packages:
            import_custom(package, f"env.packages=[{package}]")
        if colon:
            import_custom(module, f"env.id={options.id}")
        if name not in gymnasium.registry:
            near, choice = nearest(name, sorted(gymnasium.registry)), choice_for(name)
            advice = f" Did you mean {near}?" if near else ""
            if choice not in ("gym", options.name):
                advice = f" Give env={choice} env.id={name}."
            raise ConfigError(
                f"env.id={options.id} is not registered with Gymnasium.{advice} If another package registers it, give "
                "env.packages=[package]."
            )
        return gymnasium.spec(name)

    def _creator(self, spec: EnvSpec) -> Callable[..., Any]:
        native = self.options.vectorization == NATIVE
        entry_point: Any = spec.vector_entry_point if native else spec.entry_point
        with making(f"env.id={self.options.id}"):
            return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point

    def _arguments(self, creator: Callable[..., Any]) -> dict[str, Any]:
        """The configured arguments. A vector environment is asked for the autoreset that we use."""
        resets = self.options.vectorization == NATIVE and "autoreset_mode" in inspect.signature(creator).parameters
        return ({"autoreset_mode": AutoresetMode.SAME_STEP} if resets else {}) | self.options.kwargs

    def episode_limit(self) -> int | None:
        """The steps after which an episode is truncated; None if unknown."""
        return self.options.max_episode_steps or self.spec().max_episode_steps

    def create(self) -> gymnasium.Env[Any, Any]:
        """One environment, with the registered time limit unless the configuration has its own."""
        limit = None if self.options.max_episode_steps is None else -1
        with making(self._asked()):
            return gymnasium.make(self.spec().id, limit, disable_env_checker=True, **self.options.kwargs)

    def plain_spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """The spaces of one environment, also where only a vector environment is registered."""
        if self.spec().entry_point is not None:
            return super().plain_spaces()
        with closing(self._vector(1)) as vector:
            return vector.single_observation_space, vector.single_action_space

    def plain(self) -> gymnasium.Env[Any, Any]:
        """One environment within the wrappers of the configuration."""
        if self.spec().entry_point is None:
            raise ConfigError(
                f"env.id={self.options.id} is registered only with a vector_entry_point, so single environments cannot "
                "be made. Make its vector environment with gymnasium.make_vec."
            )
        return super().plain()

    def _asked(self) -> str:
        arguments = f" with env.kwargs={self.options.kwargs}" if self.options.kwargs else ""
        return f"env.id={self.options.id}{arguments}"

    def make(self, num_envs: int) -> EnvBase:
        """The environments, single or as the id's own vector environment."""
        if self.options.vectorization != NATIVE:
            return super().make(num_envs)
        return NativeVectorEnv(self._vector(num_envs), self.options.id, self.options.mask)

    def _vector(self, num_envs: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        options, spec = self.options, self.spec()
        if self.reveals:
            raise ConfigError(
                "algorithm.critic_observation=[hidden] shows the critic what env.mask hides in single environments, "
                f"but env.vectorization={NATIVE} makes one vector environment. Choose env.vectorization=inline."
            )
        arguments = self._arguments(self._creator(spec))
        if options.max_episode_steps is not None:
            arguments["max_episode_steps"] = options.max_episode_steps
        with making(self._asked()):
            return gymnasium.make_vec(spec.id, num_envs, NATIVE, **arguments)


make = Registered
