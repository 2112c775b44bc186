"""Environments registered with Gymnasium: N single ones, or the id's own vector environment.

Shape legend: N environments.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl._utils import seed_generator

from recurrl.config import NATIVE, EnvConfig
from recurrl.envs.faults import Faults, unpacked
from recurrl.envs.groups import EpisodeSeeds, Groups
from recurrl.envs.native import NativeVectorEnv
from recurrl.envs.observations import Observations
from recurrl.envs.saved_state import UnsavableError, restore, state_of
from recurrl.envs.spaces import check_spaces, leaves, spec_under
from recurrl.envs.tensors import TensorEnv
from recurrl.envs.wrappers import (
    ActionsInUnits,
    HideObservations,
    MaskFromInfo,
    PreviousStep,
    SeededEpisodes,
    under_one_key,
)
from recurrl.errors import ConfigError, EnvironmentFaultError
from recurrl.keys import ACTION, OBSERVATION

EXTRAS = {"popgym": "popgym", "minigrid": "minigrid", "ale_py": "atari"}
"""The extras of recurrl, by the package that registers environments."""


def check(config: EnvConfig) -> None:
    """Rejects ids that are not registered as requested, missing packages, and masks that do not fit.

    Raises:
        ConfigError: with similar names, or the pip command.
    """
    _import_packages(config)
    if config.id not in gymnasium.registry:
        names = sorted(gymnasium.registry)
        near = difflib.get_close_matches(config.id, names, n=3, cutoff=0.6)
        advice = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(
            f"env.id={config.id} is not registered with Gymnasium.{advice} If another package registers it, give "
            "env.packages=[package]."
        )
    _check_entry_points(config)
    if any(index < 0 for index in config.mask):
        raise ConfigError(f"env.mask={config.mask} holds a negative index. Give indices of the observation, from 0.")


def _check_entry_points(config: EnvConfig) -> None:
    spec = gymnasium.spec(config.id)
    if config.vectorization != NATIVE:
        if spec.entry_point is None:
            raise ConfigError(
                f"env.id={config.id} is registered only with a vector_entry_point, so single environments cannot be "
                f"made. Give env.vectorization={NATIVE}."
            )
        return
    if spec.vector_entry_point is None:
        raise ConfigError(
            f"env.vectorization={NATIVE} steps all environments in one call, but env.id={config.id} has no "
            "vector_entry_point. Choose env.vectorization=inline, or register the id with one."
        )
    for name in ("previous_action", "previous_reward", "action_mask_from_info"):
        if getattr(config, name):
            raise ConfigError(
                f"env.{name}=true works on single environments, but env.vectorization={NATIVE} makes one vector "
                "environment. Set it to false, have the vector environment include it in its observation, or choose "
                "env.vectorization=inline."
            )


def episode_limit(config: EnvConfig) -> int | None:
    """The steps after which an episode is truncated; None if unknown."""
    return config.max_episode_steps or gymnasium.spec(config.id).max_episode_steps


def make(config: EnvConfig, num_envs: int, groups: Groups | None = None) -> TensorEnv:
    """``num_envs`` copies of the configured environment as one TorchRL environment of batch size ``[num_envs]``.

    With ``groups``, neighbouring copies start their episodes from the same states.
    """
    if config.vectorization == NATIVE:
        return _make_native(config, num_envs, groups)
    makers = [partial(make_single, config)] * num_envs
    if groups is not None:
        makers = [partial(_make_member, config, groups.episode_seeds(i)) for i in range(num_envs)]
    return InlineEnv([make_one() for make_one in makers])


def make_single(config: EnvConfig) -> gymnasium.Env[Any, Any]:
    """One copy of the configured environment, with the hidden observations removed.

    Bounded continuous actions are in units of half their range, −1 and 1 being the bounds, and are clipped to it.
    Observations and actions of several parts are dicts under the keys ``observation`` and ``action``.

    Raises:
        ConfigError: a package is missing, the arguments do not fit, or the policy cannot handle the spaces.
    """
    _import_packages(config)
    env: gymnasium.Env[Any, Any] = _made(config, partial(gymnasium.make, disable_env_checker=True))
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), spaces.Space):
            raise ConfigError(f"{config.id} has no {name}. Set one in its constructor.")
    check_spaces(config.id, env.observation_space, env.action_space)
    if config.mask:
        env = HideObservations(env, config.mask)
    if any(isinstance(space, spaces.Box) for _, space in leaves(env.action_space)):
        env = ActionsInUnits(env)
    if config.action_mask_from_info:
        env = MaskFromInfo(env)
    if config.previous_action or config.previous_reward:
        env = PreviousStep(env, config.previous_action, config.previous_reward)
    return under_one_key(env)


def _make_native(config: EnvConfig, num_envs: int, groups: Groups | None) -> NativeVectorEnv:
    """The id's own vector environment."""
    _import_packages(config)
    if groups is not None:
        raise ConfigError(
            "algorithm=grpo needs the episodes of a group to start from the same state, which one vector environment "
            f"(env.vectorization={NATIVE}) cannot do. Choose algorithm=ppo, or env.vectorization=inline."
        )
    make = partial(gymnasium.make_vec, num_envs=num_envs, vectorization_mode=NATIVE)
    entry_point: Any = gymnasium.spec(config.id).vector_entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if "autoreset_mode" in inspect.signature(creator).parameters and "autoreset_mode" not in config.kwargs:
        make = partial(make, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    return NativeVectorEnv(_made(config, make), config.id, config.mask)


def _made(config: EnvConfig, make: Callable[..., Any]) -> Any:
    """Calls one of Gymnasium's functions with the configured id and arguments.

    Raises:
        ConfigError: a package is missing, or the arguments do not fit.
        EnvironmentFaultError: the environment's constructor raised.
    """
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    try:
        return make(config.id, **limit, **config.kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"env.id={config.id} needs another package: {error}.") from error
    except TypeError as error:
        if not config.kwargs:
            raise EnvironmentFaultError(_not_made(config, error)) from error
        raise ConfigError(f"env.id={config.id} does not take env.kwargs={config.kwargs}: {error}.") from error
    except Exception as error:
        raise EnvironmentFaultError(_not_made(config, error)) from error


def _not_made(config: EnvConfig, error: Exception) -> str:
    return (
        f"env.id={config.id} cannot be made: it raised {type(error).__name__}: {error}. HYDRA_FULL_ERROR=1 shows where."
    )


class InlineEnv(TensorEnv):
    """Gymnasium environments stepped one after the other in this process, as one environment of batch size ``[N]``."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        first, count = envs[0], len(envs)
        observation = spec_under(OBSERVATION, first.observation_space).expand(count)
        super().__init__(count, dict(observation.items()), spec_under(ACTION, first.action_space).expand(count)[ACTION])
        self._envs = list(envs)
        self._composite_action = isinstance(first.action_space, spaces.Dict)
        # The last observation of each environment, by entry.
        self._last: dict[NestedKey, np.ndarray[Any, Any]] = {
            key: values.numpy()
            for key, values in self.observation_spec.zero().items(include_nested=True, leaves_only=True)
        }
        # A separate object, because setting an attribute of an EnvBase takes as long as a light environment's step.
        self._faults = Faults(first.spec.id if first.spec else "unregistered", count)
        self._composite_observation = isinstance(first.observation_space, spaces.Dict)
        space = first.observation_space
        space = space[OBSERVATION] if isinstance(space, spaces.Dict) else space
        self._plain = next(iter(self._last.values()))
        self._dtype, self._shape = self._plain.dtype, self._plain.shape[1:]
        self._reader = Observations(self._faults, space, self._last, first.action_space)

    def reset_tensors(self, chosen: Tensor | None) -> dict[NestedKey, Tensor]:
        """Resets them one by one."""
        begun_N = np.ones(len(self._envs), bool) if chosen is None else chosen.numpy().reshape(-1)
        faults = self._faults
        with faults.blamed("reset"):
            for i in begun_N.nonzero()[0].tolist():
                faults.at = i
                self._take(i, unpacked("reset", self._envs[i].reset())[0])
        return self._observed(begun_N)

    def step_tensors(self, action: Tensor | TensorDictBase) -> dict[NestedKey, Tensor]:
        """Steps them one by one."""
        actions = _one_by_one(action)
        if self._composite_action:
            actions = [{ACTION: parts} for parts in actions]
        rewards: list[Any] = []
        ended: list[Any] = []
        cut: list[Any] = []
        faults, take = self._faults, self._take
        faults.steps += 1
        with faults.blamed("step"):
            for i, env in enumerate(self._envs):
                faults.at = i
                returned = env.step(actions[i])
                # Without calling `unpacked`, which takes as long as all of this.
                if type(returned) is not tuple or len(returned) != 5:
                    unpacked("step", returned)
                observation, reward, terminated, truncated, _ = returned
                rewards.append(reward)
                ended.append(terminated)
                cut.append(truncated)
                take(i, observation)
        results = faults.results(rewards, ended, cut)
        return self._observed(~results["done"].numpy()[:, 0]) | results

    def episodes(self) -> dict[str, Any]:
        """The state of each environment, and what was observed last."""
        return {"environments": [state_of(env) for env in self._envs], "observed": self._copies()}

    def restore_episodes(self, state: dict[str, Any]) -> None:
        """Gives each environment its state."""
        if len(state["environments"]) != len(self._envs):
            raise UnsavableError(
                f"{len(state['environments'])} environments were saved, but there are now {len(self._envs)}"
            )
        for env, of_one in zip(self._envs, state["environments"], strict=True):
            restore(env, of_one)
        for key, values in self._last.items():
            values[...] = state["observed"][key].numpy()

    def _take(self, i: int, observation: Any) -> None:
        # The common case, without a call: this runs for each environment at every step.
        if type(observation) is np.ndarray and observation.dtype == self._dtype and observation.shape == self._shape:
            self._plain[i] = observation
            return
        if self._composite_observation:
            observation = observation[OBSERVATION]
        for values, entry in zip(self._last.values(), self._reader.read(observation), strict=True):
            values[i] = entry

    def _observed(self, acting_N: np.ndarray[Any, Any] | None = None) -> dict[NestedKey, Tensor]:
        """The last observations, checked; the environments in ``acting`` act on them next."""
        self._reader.check(self._last, acting_N)
        return self._copies()

    def _copies(self) -> dict[NestedKey, Tensor]:
        return {key: torch.from_numpy(values.copy()) for key, values in self._last.items()}

    def _set_seed(self, seed: int | None) -> None:
        # A reset with the seed and the chain of seeds are TorchRL's way in environments of several processes.
        with self._faults.blamed("reset"):
            for i, env in enumerate(self._envs):
                self._faults.at = i
                env.reset(seed=seed)
                seed = None if seed is None else int(seed_generator(seed))

    def close(self, **kwargs: Any) -> None:
        """Closes every environment."""
        with self._faults.blamed("close"):
            for i, env in enumerate(self._envs):
                self._faults.at = i
                env.close()
        super().close(**kwargs)


def _make_member(config: EnvConfig, seeds: EpisodeSeeds) -> gymnasium.Env[Any, Any]:
    return SeededEpisodes(make_single(config), seeds)


def _one_by_one(action: Tensor | TensorDictBase) -> Sequence[Any]:
    """An action ``[N]`` as N actions for Gymnasium, dicts if it has several parts."""
    if isinstance(action, Tensor):
        return cast(Sequence[Any], action.numpy())
    parts = {key: _one_by_one(part) for key, part in action.items()}
    return [{key: values[i] for key, values in parts.items()} for i in range(action.batch_size[0])]


def _import_packages(config: EnvConfig) -> None:
    for package in config.packages:
        if not all(name.isidentifier() for name in package.split(".")):
            raise ConfigError(
                f"env.packages={list(config.packages)} holds {package!r}, which is not a valid package name. Give "
                "names as in Python imports, or env.packages=[] for none."
            )
        top = package.partition(".")[0]
        if importlib.util.find_spec(top) is None:
            install = f"'recurrl[{EXTRAS[top]}]'" if top in EXTRAS else top
            raise ConfigError(f"env={config.name} needs the package {top}. Install it with: pip install {install}")
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"env={config.name} needs {package}, which cannot be imported: {error}. Install its dependencies, or "
                "another version of it."
            ) from error
