"""Environments registered with Gymnasium, in five ways of running several side by side.

Shape legend: N environments.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import getitem
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl._utils import seed_generator
from torchrl.envs import EnvBase, GymWrapper, SerialEnv

from recurrl.config import NATIVE, EnvConfig
from recurrl.environment_state import UnsavableError, restore, state_of
from recurrl.envs._faults import Faults
from recurrl.envs._native import NativeVectorEnv
from recurrl.envs._parallel import NamedParallelEnv
from recurrl.envs._spaces import check_spaces, leaves, spec_under
from recurrl.envs._tensors import TensorEnv
from recurrl.envs._wrappers import (
    ActionMask,
    ActionsInUnits,
    HideObservations,
    PreviousStep,
    SeededEpisodes,
    under_one_key,
)
from recurrl.errors import ConfigError, EnvironmentFaultError
from recurrl.groups import EpisodeSeeds, Groups
from recurrl.keys import ACTION, ACTION_MASK, OBSERVATION
from recurrl.signals import ignore_signals

EXTRAS = ("popgym",)


def check(config: EnvConfig) -> None:
    """Refuses an id that is not registered, or not for what is asked, a missing package, and a mask that does not fit.

    Raises:
        ConfigError: with near names, or the pip command.
    """
    _import_packages(config)
    if config.id not in gymnasium.registry:
        names = sorted(gymnasium.registry)
        near = difflib.get_close_matches(config.id, names, n=3, cutoff=0.6)
        advice = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(
            f"env.id={config.id} is not registered with Gymnasium.{advice} If another package registers it, name "
            "that package: env.packages=[package]."
        )
    _check_entry_points(config)
    if any(index < 0 for index in config.mask):
        raise ConfigError(f"env.mask={config.mask} holds a negative index. Give indices of the observation, from 0.")


def _check_entry_points(config: EnvConfig) -> None:
    spec = gymnasium.spec(config.id)
    if config.vectorization != NATIVE:
        if spec.entry_point is None:
            raise ConfigError(
                f"env.id={config.id} is registered with a vector_entry_point alone, so that there are no single "
                f"environments of it. Give env.vectorization={NATIVE}."
            )
        return
    if spec.vector_entry_point is None:
        raise ConfigError(
            f"env.vectorization={NATIVE} steps all environments in one call, but env.id={config.id} is registered "
            "without a vector_entry_point. Choose another env.vectorization (inline, the default, is the fastest for "
            "light environments), or register the id with one."
        )
    for name in ("previous_action", "previous_reward", "action_mask_from_info"):
        if getattr(config, name):
            raise ConfigError(
                f"env.{name}=true is done environment by environment, but with env.vectorization={NATIVE} all are one. "
                "Set it to false, let the vector environment show it in its observation, or choose another "
                "env.vectorization."
            )


def episode_limit(config: EnvConfig) -> int | None:
    """The steps after which an episode is truncated; None where no limit is known."""
    return config.max_episode_steps or gymnasium.spec(config.id).max_episode_steps


def make(config: EnvConfig, num_envs: int, groups: Groups | None = None) -> EnvBase:
    """``num_envs`` copies of the configured environment as one TorchRL environment of batch size ``[num_envs]``.

    With ``groups`` neighbouring copies start their episodes alike.
    """
    if config.vectorization == NATIVE:
        return _make_native(config, num_envs, groups)
    makers = [partial(make_single, config)] * num_envs
    if groups is not None:
        makers = [partial(_make_member, config, groups.episode_seeds(i)) for i in range(num_envs)]
    if config.vectorization == "serial":
        return SerialEnv(num_envs, [partial(_wrap, make_one) for make_one in makers])
    if config.vectorization == "parallel":
        _refuse_nested(config)
        return NamedParallelEnv(config.id, [partial(_wrap_in_worker, make_one, os.getpid()) for make_one in makers])
    if config.vectorization == "gymnasium":
        # TorchRL resets finished environments itself; Gymnasium must not do so behind its back.
        mode = gymnasium.vector.AutoresetMode.DISABLED
        vector = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
        _refuse_renamed(vector.single_observation_space, vector.spec)
        if isinstance(vector.single_action_space, spaces.Dict):
            raise ConfigError(
                f"{config.id} takes actions of several parts, which TorchRL does not hand to Gymnasium's vector "
                "environments. Choose another env.vectorization: inline, serial or parallel."
            )
        return GymWrapper(vector, categorical_action_encoding=True)
    return InlineEnv([make_one() for make_one in makers])


def make_single(config: EnvConfig) -> gymnasium.Env[Any, Any]:
    """One copy of the configured environment, with the hidden observations removed.

    Bounded continuous actions are in units of half their range, −1 and 1 being the bounds, and are clipped to it.
    Observations and actions of several parts are dicts under the keys ``observation`` and ``action``.

    Raises:
        ConfigError: a package is missing, the arguments do not fit, or the spaces are of a kind that the policy cannot
            handle.
    """
    _import_packages(config)
    env: gymnasium.Env[Any, Any] = _made(config, partial(gymnasium.make, disable_env_checker=True))
    check_spaces(config.id, env.observation_space, env.action_space)
    if config.mask:
        env = HideObservations(env, config.mask)
    if any(isinstance(space, spaces.Box) for _, space in leaves(env.action_space)):
        env = ActionsInUnits(env)
    shown = env.observation_space
    if config.action_mask_from_info or (isinstance(shown, spaces.Dict) and ACTION_MASK in shown.spaces):
        env = ActionMask(env, config.action_mask_from_info)
    if config.previous_action or config.previous_reward:
        env = PreviousStep(env, config.previous_action, config.previous_reward)
    return under_one_key(env)


def _make_native(config: EnvConfig, num_envs: int, groups: Groups | None) -> NativeVectorEnv:
    """The id's own vector environment."""
    _import_packages(config)
    if groups is not None:
        raise ConfigError(
            f"With env.vectorization={NATIVE} one vector environment starts all episodes, so that those of a group "
            "cannot start alike, as algorithm=grpo needs. Choose algorithm=ppo, or another env.vectorization."
        )
    make = partial(gymnasium.make_vec, num_envs=num_envs, vectorization_mode=NATIVE)
    entry_point: Any = gymnasium.spec(config.id).vector_entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if "autoreset_mode" in inspect.signature(creator).parameters and "autoreset_mode" not in config.kwargs:
        make = partial(make, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    return NativeVectorEnv(_made(config, make), config.id, config.mask)


def _made(config: EnvConfig, make: Callable[..., Any]) -> Any:
    """What one of Gymnasium's functions makes of the configured id and its arguments.

    Raises:
        ConfigError: a package is missing, or the arguments do not fit.
        EnvironmentFaultError: the environment's constructor raised.
    """
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    try:
        return make(config.id, **limit, **config.kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"env.id={config.id} needs a package: {error}.") from error
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
        # What was observed last of each environment, by the key of the entry.
        self._last: dict[NestedKey, np.ndarray[Any, Any]] = {
            key: values.numpy()
            for key, values in self.observation_spec.zero().items(include_nested=True, leaves_only=True)
        }
        self._entries = [(key, values, values.dtype, values.shape[1:]) for key, values in self._last.items()]
        self._composite_observation = isinstance(first.observation_space, spaces.Dict)
        # What changes from step to step is in an object of its own: to set an attribute of an EnvBase takes as long as
        # a light environment's step.
        self._faults = Faults(first.spec.id if first.spec else "unregistered", count)

    def reset_tensors(self, chosen: Tensor | None) -> dict[NestedKey, Tensor]:
        """Resets them one by one."""
        which = range(len(self._envs)) if chosen is None else chosen.numpy().reshape(-1).nonzero()[0].tolist()
        faults = self._faults
        with faults.blamed("reset"):
            for i in which:
                faults.at = i
                self._take(i, self._envs[i].reset()[0])
        return self._observations()

    def step_tensors(self, action: Tensor | TensorDictBase) -> dict[NestedKey, Tensor]:
        """Steps them one by one."""
        actions = _one_by_one(action)
        if self._composite_action:
            actions = [{ACTION: parts} for parts in actions]
        count = len(self._envs)
        # Of one dimension, because to write a number into a row of two takes four times as long.
        reward_N, terminated_N, truncated_N = np.empty(count, np.float32), np.empty(count, bool), np.empty(count, bool)
        faults, take = self._faults, self._take
        faults.steps += 1
        with faults.blamed("step"):
            for i, env in enumerate(self._envs):
                faults.at = i
                # A reward may be an array of one number.
                observation, reward_N[i : i + 1], terminated_N[i], truncated_N[i], _ = env.step(actions[i])
                take(i, observation)
        columns = {
            "reward": reward_N,
            "terminated": terminated_N,
            "truncated": truncated_N,
            "done": terminated_N | truncated_N,
        }
        faults.check_finite("reward", reward_N)
        return self._observations() | {key: torch.from_numpy(each.reshape(-1, 1)) for key, each in columns.items()}

    def episodes(self) -> dict[str, Any]:
        """The state of each environment, and what was observed last."""
        return {"environments": [state_of(env) for env in self._envs], "observed": self._observations()}

    def restore_episodes(self, state: dict[str, Any]) -> None:
        """Gives each environment its state."""
        if len(state["environments"]) != len(self._envs):
            raise UnsavableError(
                f"{len(state['environments'])} environments were saved, and {len(self._envs)} are here"
            )
        for env, of_one in zip(self._envs, state["environments"], strict=True):
            restore(env, of_one)
        for key, values in self._last.items():
            values[...] = state["observed"][key].numpy()

    def _take(self, i: int, observation: Any) -> None:
        for key, values, dtype, shape in self._entries:
            entry = np.asarray(reduce(getitem, key, observation) if self._composite_observation else observation)
            if entry.dtype != dtype or entry.shape != shape:
                self._faults.check_fits(key, entry, shape, dtype)
            values[i] = entry

    def _observations(self) -> dict[NestedKey, Tensor]:
        for key, values in self._last.items():
            self._faults.check_finite(f"value of observation {key!r}", values)
        return {key: torch.from_numpy(values.copy()) for key, values in self._last.items()}

    def _set_seed(self, seed: int | None) -> None:
        # A reset with the seed and the chain of seeds are TorchRL's way in SerialEnv and ParallelEnv: the same seed
        # gives the same episodes whichever way the environments are run.
        with self._faults.blamed("reset"):
            for i, env in enumerate(self._envs):
                self._faults.at = i
                env.reset(seed=seed)
                seed = None if seed is None else int(seed_generator(seed))

    def close(self, **kwargs: Any) -> None:
        """Closes every environment."""
        for env in self._envs:
            env.close()
        super().close(**kwargs)


def _make_member(config: EnvConfig, seeds: EpisodeSeeds) -> gymnasium.Env[Any, Any]:
    return SeededEpisodes(make_single(config), seeds)


def _one_by_one(action: Tensor | TensorDictBase) -> Sequence[Any]:
    """An action ``[N]`` as the N of them that Gymnasium takes, dicts where it has several parts."""
    if isinstance(action, Tensor):
        return cast(Sequence[Any], action.numpy())
    parts = {key: _one_by_one(part) for key, part in action.items()}
    return [{key: values[i] for key, values in parts.items()} for i in range(action.batch_size[0])]


def _wrap(make_one: Callable[[], gymnasium.Env[Any, Any]]) -> EnvBase:
    env = make_one()
    _refuse_renamed(env.observation_space, env.spec)
    return GymWrapper(env, categorical_action_encoding=True)


def _wrap_in_worker(make_one: Callable[[], gymnasium.Env[Any, Any]], main: int) -> EnvBase:
    # ParallelEnv calls this in the process that it belongs to as well.
    if os.getpid() != main:
        ignore_signals()
    return _wrap(make_one)


def _refuse_nested(config: EnvConfig) -> None:
    """Refuses observations of several entries, which TorchRL's ParallelEnv does not reset one environment at a time.

    Raises:
        ConfigError: with what to do.
    """
    env = make_single(config)
    space = env.observation_space
    env.close()
    if isinstance(space, spaces.Dict):
        raise ConfigError(
            f"{config.id} has observations of several entries (a mask of actions and the previous action or reward are "
            "some too), which TorchRL's ParallelEnv cannot reset one environment at a time. Choose another "
            "env.vectorization: inline or serial; or collector=multi_sync for several processes."
        )


def _refuse_renamed(space: spaces.Space[Any], spec: Any) -> None:
    """Refuses an entry that TorchRL's GymWrapper would look for under another name.

    Raises:
        ConfigError: with what to do.
    """
    if any("state" in name.split(".") for name, _ in leaves(space)):
        raise ConfigError(
            f"{spec.id if spec else 'The environment'} has an observation entry named state, which TorchRL's wrapper "
            "renames. Choose env.vectorization=inline, or rename the entry."
        )


def _import_packages(config: EnvConfig) -> None:
    for package in config.packages:
        if not all(name.isidentifier() for name in package.split(".")):
            raise ConfigError(
                f"env.packages={list(config.packages)} holds {package!r}, which is no name of a package. Give names as "
                "Python imports them, or env.packages=[] for none."
            )
        top = package.partition(".")[0]
        if importlib.util.find_spec(top) is None:
            install = f"'recurrl[{top}]'" if top in EXTRAS else top
            raise ConfigError(f"env={config.name} needs the package {top}. Install it with: pip install {install}")
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"env={config.name} needs {package}, which cannot be imported: {error}. Install what it lacks, or "
                "another version of it."
            ) from error
