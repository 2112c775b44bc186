"""Environments registered with Gymnasium, in four ways of running several side by side.

Shape legend: N environments.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import getitem
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl._utils import seed_generator
from torchrl.envs import EnvBase, GymWrapper, ParallelEnv, SerialEnv

from recurrl.config import EnvConfig
from recurrl.environment_state import UnsavableError, restore, state_of
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
    """Refuses an id that is not registered, a package that is not installed, and a mask that does not fit.

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
    if any(index < 0 for index in config.mask):
        raise ConfigError(f"env.mask={config.mask} holds a negative index. Give indices of the observation, from 0.")


def episode_limit(config: EnvConfig) -> int | None:
    """The steps after which an episode is truncated; None where no limit is known."""
    return config.max_episode_steps or gymnasium.spec(config.id).max_episode_steps


def make(config: EnvConfig, num_envs: int, groups: Groups | None = None) -> EnvBase:
    """``num_envs`` copies of the configured environment as one TorchRL environment of batch size ``[num_envs]``.

    With ``groups`` neighbouring copies start their episodes alike.
    """
    makers = [partial(make_single, config)] * num_envs
    if groups is not None:
        makers = [partial(_make_member, config, groups.episode_seeds(i)) for i in range(num_envs)]
    if config.vectorization == "serial":
        return SerialEnv(num_envs, [partial(_wrap, make_one) for make_one in makers])
    if config.vectorization == "parallel":
        _refuse_nested(config)
        return ParallelEnv(num_envs, [partial(_wrap_in_worker, make_one, os.getpid()) for make_one in makers])
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
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    env: gymnasium.Env[Any, Any]
    try:
        env = gymnasium.make(config.id, disable_env_checker=True, **limit, **config.kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"env.id={config.id} needs a package: {error}.") from error
    except TypeError as error:
        if not config.kwargs:
            raise EnvironmentFaultError(_not_made(config, error)) from error
        raise ConfigError(f"env.id={config.id} does not take env.kwargs={config.kwargs}: {error}.") from error
    except Exception as error:
        raise EnvironmentFaultError(_not_made(config, error)) from error
    check_spaces(config.id, env)
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
        self._composite_observation = isinstance(first.observation_space, spaces.Dict)
        self._steps = 0
        self._at = 0

    def reset_tensors(self, chosen: Tensor | None) -> dict[NestedKey, Tensor]:
        """Resets them one by one."""
        which = range(len(self._envs)) if chosen is None else chosen.flatten().nonzero().flatten().tolist()
        with self._blamed("reset"):
            for self._at in which:
                self._take(self._at, self._envs[self._at].reset()[0])
        return self._observations()

    def step_tensors(self, action: Tensor | TensorDictBase) -> dict[NestedKey, Tensor]:
        """Steps them one by one."""
        actions = _one_by_one(action)
        if self._composite_action:
            actions = [{ACTION: parts} for parts in actions]
        count = len(self._envs)
        reward = np.empty((count, 1), np.float32)
        terminated = np.empty((count, 1), bool)
        truncated = np.empty((count, 1), bool)
        self._steps += 1
        with self._blamed("step"):
            for i, env in enumerate(self._envs):
                self._at = i
                observation, reward[i], terminated[i], truncated[i], _ = env.step(actions[i])
                self._take(i, observation)
        self._check_finite("reward", reward)
        return {
            **self._observations(),
            "reward": torch.from_numpy(reward),
            "terminated": torch.from_numpy(terminated),
            "truncated": torch.from_numpy(truncated),
            "done": torch.from_numpy(terminated | truncated),
        }

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
        for key, values in self._last.items():
            entry = np.asarray(reduce(getitem, key, observation) if self._composite_observation else observation)
            # A number may stand for a vector of one, which is what its specification is.
            fits = entry.shape == values.shape[1:] or (entry.ndim == 0 and values.shape[1:] == (1,))
            if not fits or not np.can_cast(entry.dtype, values.dtype, "same_kind"):
                raise EnvironmentFaultError(
                    f"{self._name(i)} gave the observation {key!r} the shape {entry.shape} and the dtype {entry.dtype},"
                    f" but its space has {values.shape[1:]} and {values.dtype}. Let the environment return what its "
                    "observation_space says."
                )
            values[i] = entry

    def _observations(self) -> dict[NestedKey, Tensor]:
        for key, values in self._last.items():
            self._check_finite(f"value of observation {key!r}", values)
        return {key: torch.from_numpy(values.copy()) for key, values in self._last.items()}

    def _check_finite(self, what: str, values: np.ndarray[Any, Any]) -> None:
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            i = int(np.argwhere(~np.isfinite(values))[0][0])
            raise EnvironmentFaultError(
                f"{self._name(i)} gave a {what} that is not finite: {values[i]}. Let the environment clip it, or end "
                "the episode before."
            )

    @contextmanager
    def _blamed(self, call: str) -> Iterator[None]:
        """Says of what an environment raises in a call which one it was: the one that ``_at`` is the index of."""
        try:
            yield
        except (ConfigError, EnvironmentFaultError):
            raise
        except Exception as error:
            raise EnvironmentFaultError(
                f"{self._name(self._at)} raised {type(error).__name__} in {call}: {str(error).rstrip('.')}. "
                "HYDRA_FULL_ERROR=1 shows where."
            ) from error

    def _name(self, i: int) -> str:
        spec = self._envs[i].spec
        return f"Environment {i} of {len(self._envs)} ({spec.id if spec else 'unregistered'}), at step {self._steps},"

    def _set_seed(self, seed: int | None) -> None:
        # A reset with the seed and the chain of seeds are TorchRL's way in SerialEnv and ParallelEnv: the same seed
        # gives the same episodes whichever way the environments are run.
        with self._blamed("reset"):
            for i, env in enumerate(self._envs):
                self._at = i
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
