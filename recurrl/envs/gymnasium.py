"""Environments registered with Gymnasium, in four ways of running several side by side.

Shape legend: N environments.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from torchrl._utils import seed_generator
from torchrl.data import Categorical, Composite
from torchrl.envs import EnvBase, GymWrapper, ParallelEnv, SerialEnv

from recurrl.config import EnvConfig
from recurrl.errors import ConfigError
from recurrl.groups import EpisodeSeeds, Groups

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
        return ParallelEnv(num_envs, [partial(_wrap, make_one) for make_one in makers])
    if config.vectorization == "gymnasium":
        # TorchRL resets finished environments itself; Gymnasium must not do so behind its back.
        mode = gymnasium.vector.AutoresetMode.DISABLED
        vector = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
        return GymWrapper(vector, categorical_action_encoding=True)
    return InlineEnv([make_one() for make_one in makers])


def make_single(config: EnvConfig) -> gymnasium.Env[Any, Any]:
    """One copy of the configured environment, with the hidden observations removed.

    Bounded continuous actions are in units of half their range, −1 and 1 being the bounds, and are clipped to it.

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
            raise
        raise ConfigError(f"env.id={config.id} does not take env.kwargs={config.kwargs}: {error}.") from error
    _check_spaces(config.id, env)
    if config.mask:
        env = HideObservations(env, config.mask)
    if isinstance(env.action_space, spaces.Box) and env.action_space.is_bounded():
        env = gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
        env = gymnasium.wrappers.ClipAction(env)
    return env


class HideObservations(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Removes entries of a vector observation.

    Raises:
        ConfigError: an index the observation does not have, or nothing would be left.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], mask: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ConfigError(
                f"env.mask={list(mask)} hides entries of a vector, but the observation space is {space}. "
                "Remove env.mask."
            )
        size = space.shape[0]
        if any(index >= size for index in mask) or len(set(mask)) >= size:
            raise ConfigError(
                f"env.mask={list(mask)} does not fit an observation of {size} entries: give indices from 0 to "
                f"{size - 1}, and leave at least one entry to see."
            )
        self._seen = np.array([index for index in range(size) if index not in set(mask)])
        self.observation_space = spaces.Box(space.low[self._seen], space.high[self._seen], dtype=space.dtype.type)

    def observation(self, observation: Any) -> Any:
        """The entries that are seen."""
        return observation[self._seen]


class SeededEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives every reset that brings no seed the next of a group's.

    Args:
        env: the environment.
        seeds: what the group's members share.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], seeds: EpisodeSeeds) -> None:
        super().__init__(env)
        self._seeds = seeds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Starts an episode."""
        return self.env.reset(seed=self._seeds.next() if seed is None else seed, options=options)

    def step(self, action: Any) -> Any:
        """Takes a step."""
        self._seeds.step()
        return self.env.step(action)


class InlineEnv(EnvBase):
    """Gymnasium environments stepped one after the other in this process, as one environment of batch size ``[N]``.

    One TensorDict is made a step, not one an environment, which is what makes it fast for light environments.
    """

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        super().__init__(device="cpu", batch_size=[len(envs)])
        self._envs = list(envs)
        specs = GymWrapper(envs[0], categorical_action_encoding=True)
        self.observation_spec = Composite(
            observation=specs.observation_spec["observation"].expand(
                len(envs), *specs.observation_spec["observation"].shape
            ),
            shape=self.batch_size,
        )
        self.action_spec = specs.action_spec.expand(len(envs), *specs.action_spec.shape)
        self.reward_spec = specs.reward_spec.expand(len(envs), *specs.reward_spec.shape)
        done = Categorical(2, shape=(len(envs), 1), dtype=torch.bool)
        self.full_done_spec = Composite(
            done=done, terminated=done.clone(), truncated=done.clone(), shape=self.batch_size
        )
        self._observation = self.observation_spec["observation"].zero().numpy()

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        chosen = None if tensordict is None else tensordict.get("_reset", None)
        which = range(len(self._envs)) if chosen is None else chosen.flatten().nonzero().flatten().tolist()
        for i in which:
            self._observation[i], _ = self._envs[i].reset()
        return TensorDict({"observation": torch.from_numpy(self._observation.copy())}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = tensordict["action"].numpy()
        count = len(self._envs)
        reward = np.empty((count, 1), np.float32)
        terminated = np.empty((count, 1), bool)
        truncated = np.empty((count, 1), bool)
        for i, env in enumerate(self._envs):
            self._observation[i], reward[i], terminated[i], truncated[i], _ = env.step(actions[i])
        return TensorDict(
            {
                "observation": torch.from_numpy(self._observation.copy()),
                "reward": torch.from_numpy(reward),
                "terminated": torch.from_numpy(terminated),
                "truncated": torch.from_numpy(truncated),
                "done": torch.from_numpy(terminated | truncated),
            },
            self.batch_size,
        )

    def _set_seed(self, seed: int | None) -> None:
        # A reset with the seed and the chain of seeds are TorchRL's way in SerialEnv and ParallelEnv: the same seed
        # gives the same episodes whichever way the environments are run.
        for env in self._envs:
            env.reset(seed=seed)
            seed = None if seed is None else int(seed_generator(seed))

    def close(self, **kwargs: Any) -> None:
        """Closes every environment."""
        for env in self._envs:
            env.close()
        super().close(**kwargs)


def _make_member(config: EnvConfig, seeds: EpisodeSeeds) -> gymnasium.Env[Any, Any]:
    return SeededEpisodes(make_single(config), seeds)


def _wrap(make_one: Any) -> EnvBase:
    return GymWrapper(make_one(), categorical_action_encoding=True)


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


def _check_spaces(env_id: str, env: gymnasium.Env[Any, Any]) -> None:
    observation, action = env.observation_space, env.action_space
    vector = isinstance(observation, spaces.Box) and len(observation.shape) == 1
    if not vector and not isinstance(observation, spaces.Discrete):
        raise ConfigError(
            f"{env_id} has observations of the kind {observation}. This version of recurrl trains on vectors and on "
            "discrete observations. Wrap the environment so that it gives one of these."
        )
    if not isinstance(action, spaces.Discrete | spaces.Box):
        raise ConfigError(
            f"{env_id} has actions of the kind {action}. This version of recurrl trains on discrete and on continuous "
            "actions. Wrap the environment so that it takes one of these."
        )
