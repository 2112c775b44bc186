"""Gymnasium wrappers that make what a policy sees and does of one form.

A plain observation stays one. An observation of several entries, be they the environment's own, a mask of actions, or
the previous action and reward, becomes a dict under the one key ``observation``; likewise actions of several parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import rescale_box

from recurrl.errors import ConfigError
from recurrl.groups import EpisodeSeeds
from recurrl.keys import ACTION, ACTION_MASK, OBSERVATION, PREVIOUS_ACTION, PREVIOUS_REWARD

Env = gymnasium.Env[Any, Any]
Space = spaces.Space[Any]


class HideObservations(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Removes entries of a vector observation.

    Raises:
        ConfigError: an index the observation does not have, or nothing would be left.
    """

    def __init__(self, env: Env, mask: Sequence[int]) -> None:
        super().__init__(env)
        self.observation_space, self._seen = seen_entries(env.observation_space, mask)

    def observation(self, observation: Any) -> Any:
        """The entries that are seen."""
        return observation[self._seen]


def seen_entries(space: Space, mask: Sequence[int]) -> tuple[spaces.Box, np.ndarray[Any, Any]]:
    """What is left of the space of a vector observation without the entries of a mask, and their indices.

    Raises:
        ConfigError: an index the observation does not have, or nothing would be left.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ConfigError(
            f"env.mask={list(mask)} hides entries of a vector, but the observation space is {space}. Remove env.mask."
        )
    size = space.shape[0]
    if any(index >= size for index in mask) or len(set(mask)) >= size:
        raise ConfigError(
            f"env.mask={list(mask)} does not fit an observation of {size} entries: give indices from 0 to {size - 1}, "
            "and leave at least one entry to see."
        )
    seen = np.array([index for index in range(size) if index not in set(mask)])
    return spaces.Box(space.low[seen], space.high[seen], dtype=space.dtype.type), seen


class ActionsInUnits(gymnasium.ActionWrapper[Any, Any, Any]):
    """Clips continuous actions to their bounds; where both are finite, −1 and 1 stand for them."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.action_space, self._to_env = in_units(env.action_space)

    def action(self, action: Any) -> Any:
        """What the environment takes."""
        return self._to_env(action)


def in_units(space: Space) -> tuple[Space, Callable[[Any], Any]]:
    """The space that a policy acts in, and the way from there to ``space``, of one action or of a batch."""
    if isinstance(space, spaces.Dict):
        parts = {key: in_units(part) for key, part in space.spaces.items()}
        units = spaces.Dict({key: part[0] for key, part in parts.items()})
        return units, lambda action: {key: to_env(action[key]) for key, (_, to_env) in parts.items()}
    if not isinstance(space, spaces.Box):
        return space, lambda action: action
    dtype = space.dtype  # a policy may compute in another
    if not space.is_bounded():
        return space, lambda action: np.clip(action, space.low, space.high).astype(dtype, copy=False)
    box, _, rescale = rescale_box(space, np.float32(-1), np.float32(1))
    return box, lambda action: rescale(np.clip(action, box.low, box.high)).astype(dtype, copy=False)


class ActionMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows which actions are allowed as the entry ``action_mask`` of the observation, one number a choice.

    Args:
        env: with discrete or multi-discrete actions, whose choices lie one after the other in the mask.
        from_info: the mask is ``info["action_mask"]``; else it is an entry of the observation already.

    Raises:
        ConfigError: when the environment gives no mask, or one that allows nothing.
    """

    def __init__(self, env: Env, from_info: bool) -> None:
        super().__init__(env)
        self._from_info = from_info
        self._starts = starts_of_choices(env.action_space)
        if from_info:
            mask = spaces.MultiBinary(spaces.flatdim(env.action_space))
            self.observation_space = _with_entries(env.observation_space, {ACTION_MASK: mask}, "action_mask_from_info")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment, with the mask."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._masked(observation, info, over=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment, with the mask."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._masked(observation, info, terminated or truncated), reward, terminated, truncated, info

    def _masked(self, observation: Any, info: dict[str, Any], over: bool) -> Any:
        name = self.env.spec.id if self.env.spec else str(self.env)
        if self._from_info:
            if ACTION_MASK not in info:
                raise ConfigError(
                    f"env.action_mask_from_info=true, but {name} gave no info['action_mask']. Set it to false, or make "
                    "the environment give one at every reset and step."
                )
            observation = _entries(self.env.observation_space, observation) | {
                ACTION_MASK: np.asarray(info[ACTION_MASK], np.int8)
            }
        # Nothing is done after an episode's last observation, so nothing need be allowed there.
        if not over:
            check_allowed(name, observation[ACTION_MASK][None], self._starts)
        return observation


def starts_of_choices(action_space: Space) -> np.ndarray[Any, Any]:
    """Where the choices of each entry of a multi-discrete action begin within a mask; of other kinds, 0."""
    sizes: Any = action_space.nvec[:-1] if isinstance(action_space, spaces.MultiDiscrete) else []
    return np.cumsum([0, *sizes])


def check_allowed(name: str, masks_N: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> None:
    """Refuses masks that allow no action.

    Raises:
        ConfigError: with what to do.
    """
    allowing_N = np.logical_or.reduceat(masks_N, starts, -1).all(-1)
    if not allowing_N.all():
        raise ConfigError(
            f"{name} gave an action mask that allows no action: {masks_N[~allowing_N][0]}. Make the environment end "
            "the episode there, or allow an action that does nothing."
        )


class PreviousStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the previous action or reward to the observation, zeros at an episode's first step.

    The action is what the environment was given, after clipping: continuous entries as they are, discrete ones as
    one-hot vectors, the parts of a composite one after the other.

    Args:
        env: whose actions are in units of half their range.
        action: add the entry ``previous_action``.
        reward: add the entry ``previous_reward``, of size 1.
    """

    def __init__(self, env: Env, action: bool, reward: bool) -> None:
        super().__init__(env)
        self._adds = {PREVIOUS_ACTION: action, PREVIOUS_REWARD: reward}
        flat = spaces.flatten_space(env.action_space)
        assert isinstance(flat, spaces.Box)
        self._flat = spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32))
        added: dict[str, Space] = {
            PREVIOUS_ACTION: self._flat,
            PREVIOUS_REWARD: spaces.Box(-np.inf, np.inf, (1,), np.float32),
        }
        added = {key: space for key, space in added.items() if self._adds[key]}
        self.observation_space = _with_entries(env.observation_space, added, " or env.".join(added))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment; nothing was done before."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with(observation, np.zeros(self._flat.shape, np.float32), 0.0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment; ``action`` and its reward are what the next observation calls previous."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        flat: Any = spaces.flatten(self.env.action_space, action)
        given = np.clip(flat, self._flat.low, self._flat.high).astype(np.float32)
        return self._with(observation, given, reward), reward, terminated, truncated, info

    def _with(self, observation: Any, action: Any, reward: Any) -> dict[str, Any]:
        added = {PREVIOUS_ACTION: action, PREVIOUS_REWARD: np.array([reward], np.float32)}
        return _entries(self.env.observation_space, observation) | {
            key: value for key, value in added.items() if self._adds[key]
        }


def _with_entries(space: Space, added: dict[str, Space], key: str) -> spaces.Dict:
    entries = _entries(space, space)
    for name in added:
        if name in entries:
            raise ConfigError(
                f"env.{key} adds the entry {name} to the observation, which has one already. Set it to false, or "
                "rename the environment's entry."
            )
    return spaces.Dict(entries | added)


def _entries(space: Space, content: Any) -> dict[str, Any]:
    """The entries of an observation, or of its space; what is not a dict is the entry ``observation`` of one."""
    return dict(content.items()) if isinstance(space, spaces.Dict) else {OBSERVATION: content}


def under_one_key(env: Env) -> Env:
    """Puts a dict observation under ``observation`` and a dict action under ``action``; others are there already."""
    if isinstance(env.observation_space, spaces.Dict):
        space = spaces.Dict({OBSERVATION: env.observation_space})
        env = gymnasium.wrappers.TransformObservation(env, lambda observation: {OBSERVATION: observation}, space)
    if isinstance(env.action_space, spaces.Dict):
        space = spaces.Dict({ACTION: env.action_space})
        env = gymnasium.wrappers.TransformAction(env, lambda action: action[ACTION], space)
    return env


class SeededEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives every reset that brings no seed the next of a group's.

    Args:
        env: the environment.
        seeds: what the group's members share.
    """

    def __init__(self, env: Env, seeds: EpisodeSeeds) -> None:
        super().__init__(env)
        self._seeds = seeds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Starts an episode."""
        return self.env.reset(seed=self._seeds.next() if seed is None else seed, options=options)

    def step(self, action: Any) -> Any:
        """Takes a step."""
        self._seeds.step()
        return self.env.step(action)
