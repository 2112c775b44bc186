"""Gymnasium wrappers that bring observations and actions into one form.

A plain observation stays one. An observation of several entries, be they the environment's own, a mask of actions, or
the previous action and reward, becomes a dict under the one key ``observation``; likewise actions of several parts.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from recurrl.config import EnvConfig
from recurrl.envs.checks import Array, UnnamedEnvError, as_array, unpacked
from recurrl.errors import ConfigError
from recurrl.keys import ACTION, ACTION_MASK, HIDDEN, OBSERVATION, PREVIOUS_ACTION, PREVIOUS_REWARD

Env = gymnasium.Env[Any, Any]
Space = spaces.Space[Any]


class HideObservations(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Removes entries of a vector observation, or of a dict.

    Args:
        env: the environment.
        mask: the indices of a vector's entries, or the names of a dict's.
        privileged: put those of a vector under the entry ``hidden`` of a dict instead, and the others under
            ``observation``.

    Raises:
        ConfigError: an entry the observation does not have, or nothing would be left.
    """

    def __init__(self, env: Env, mask: Sequence[int | str], privileged: bool = False) -> None:
        super().__init__(env)
        self.observation_space, self._seen = seen_entries(env.observation_space, mask)
        self._hidden: Array | None = None
        self._names = set(map(str, mask))
        if privileged:
            if isinstance(env.observation_space, spaces.Dict):
                raise ConfigError(
                    "algorithm.critic_observation must name the entries of a dict that only the critic sees (got "
                    f"hidden). Give [{', '.join(map(str, mask))}], and leave env.mask out."
                )
            hidden, self._hidden = seen_entries(env.observation_space, self._seen.tolist())
            self.observation_space = spaces.Dict({OBSERVATION: self.observation_space, HIDDEN: hidden})

    def observation(self, observation: Any) -> Any:
        """The entries that are seen, and those that are hidden if they are privileged."""
        if self._hidden is not None:
            return {OBSERVATION: observation[self._seen], HIDDEN: observation[self._hidden]}
        if isinstance(self.observation_space, spaces.Dict):
            return {name: entry for name, entry in observation.items() if name not in self._names}
        return observation[self._seen]


def seen_entries(space: Space, mask: Sequence[int | str]) -> tuple[Space, Array]:
    """The space of an observation without the masked entries, and the indices or names of those that remain.

    Raises:
        ConfigError: an entry the observation does not have, or nothing would be left.
    """
    if isinstance(space, spaces.Dict):
        hidden = set(map(str, mask))  # the parts of a tuple are called 0, 1, and so on
        if not hidden < set(space):
            raise ConfigError(
                f"env.mask={list(mask)} must be some, but not all, entries of the observation: {', '.join(space)}."
            )
        shown = spaces.Dict({name: entry for name, entry in space.items() if name not in hidden})
        return shown, np.array(list(shown))
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ConfigError(
            f"env.mask={list(mask)} hides entries of a vector or a dict, but the observation space is {space}. Remove "
            "env.mask."
        )
    size = space.shape[0]
    if not set(mask) < set(range(size)):
        raise ConfigError(
            f"env.mask={list(mask)} is out of range: the observation has {size} entries (0 to {size - 1}). Leave at "
            "least one visible."
        )
    seen = np.array([index for index in range(size) if index not in set(mask)])
    return spaces.Box(space.low[seen], space.high[seen], dtype=space.dtype.type), seen


class NormalisedActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Clips continuous actions to their bounds; where both are finite, −1 and 1 stand for them."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.action_space, self._to_env = normalised_actions(env.action_space)

    def action(self, action: Any) -> Any:
        """The action for the environment."""
        return self._to_env(action)


def normalised_actions(space: Space) -> tuple[Space, Callable[[Any], Any]]:
    """The space that a policy acts in, and the map from there to ``space``, for one action or a batch.

    Dimensions of a Box are independent: in one with two finite bounds −1 and 1 stand for them, one with equal bounds
    always has that value (and zero as its only action), and any other is only clipped.
    """
    if isinstance(space, spaces.Dict):
        parts = {key: normalised_actions(part) for key, part in space.spaces.items()}
        units = spaces.Dict({key: part[0] for key, part in parts.items()})
        return units, lambda action: {key: to_env(action[key]) for key, (_, to_env) in parts.items()}
    if not isinstance(space, spaces.Box):
        return space, lambda action: action
    box, (middle, half, low, high) = half_range(space)

    def to_env(action: Any) -> Any:
        # Clipped after scaling, because rounding may leave the bounds too.
        return np.minimum(np.maximum(middle + half * action, low), high).astype(space.dtype)

    return box, to_env


def half_range(space: Any) -> tuple[spaces.Box[Any], tuple[Array, Array, Array, Array]]:
    """The space of normalised actions; and in float64 the middle of ``space``, half its range, and its bounds."""
    dtype = space.dtype  # a policy may compute in another
    limits = np.finfo(dtype)
    # In float64, with halves first: high - low of a range as wide as the dtype would be infinite.
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded, one = np.isfinite(low) & np.isfinite(high), (low < high).astype(np.float64)
    units_low, units_high = np.where(bounded, -one, low), np.where(bounded, one, high)
    low, high = np.maximum(low, float(limits.min)), np.minimum(high, float(limits.max))
    middle, half = np.where(bounded, low / 2 + high / 2, 0.0), np.where(bounded, high / 2 - low / 2, 1.0)
    units = spaces.Box(units_low.astype(dtype), units_high.astype(dtype), dtype=dtype.type)
    return units, (middle, half, low, high)


class TuplesAsDicts(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Names the parts of tuples in observations and actions ``0``, ``1``, and so on."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.observation_space, self.action_space = named(env.observation_space), named(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment."""
        observation, info = unpacked("reset", self.env.reset(seed=seed, options=options))
        return _with_names(self.env.observation_space, observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment."""
        returned = unpacked("step", self.env.step(without_names(self.env.action_space, action)))
        return _with_names(self.env.observation_space, returned[0]), *returned[1:]


def has_tuples(space: Space) -> bool:
    """True if a tuple is part of the space."""
    return isinstance(space, spaces.Tuple) or (isinstance(space, spaces.Dict) and any(map(has_tuples, space.values())))


def named(space: Space) -> Space:
    """The space with tuples replaced by dicts, whose keys are the places ``0``, ``1``, and so on."""
    if isinstance(space, spaces.Tuple):
        space = spaces.Dict({str(i): part for i, part in enumerate(space.spaces)})
    return spaces.Dict({key: named(part) for key, part in space.items()}) if isinstance(space, spaces.Dict) else space


def _with_names(space: Space, value: Any) -> Any:
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, Sequence) or len(value) != len(space.spaces):
            raise UnnamedEnvError(
                f"returned an observation that is not a tuple of {len(space.spaces)}, as its space is: {value}."
            )
        return {str(i): _with_names(part, value[i]) for i, part in enumerate(space.spaces)}
    if isinstance(space, spaces.Dict) and isinstance(value, Mapping):
        return {key: _with_names(space[key], part) if key in space.spaces else part for key, part in value.items()}
    return value


def without_names(space: Space, value: Any) -> Any:
    """An action in which dicts stand for tuples, as ``space`` has it."""
    if isinstance(space, spaces.Tuple):
        return tuple(without_names(part, value[str(i)]) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Dict):
        return {key: without_names(part, value[key]) for key, part in space.spaces.items()}
    return value


def added_entries(options: EnvConfig) -> list[str]:
    """The entries that the options of an environment add to its observation."""
    asked = {
        ACTION_MASK: options.action_mask_from_info,
        PREVIOUS_ACTION: options.previous_action,
        PREVIOUS_REWARD: options.previous_reward,
    }
    return [name for name, is_asked in asked.items() if is_asked]


class AddedEntries(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds entries to the observation: the mask of actions in the info, and the previous action and reward.

    ``action_mask`` has one number per choice; those of several discrete actions are concatenated. ``previous_action``
    is what the environment received, after clipping: continuous entries unchanged, discrete ones as one-hot vectors,
    the parts of a composite concatenated. It and ``previous_reward``, of size 1, are zero at an episode's first step.

    Args:
        env: with normalised actions.
        names: those of these entries to add.
    """

    def __init__(self, env: Env, names: Collection[str]) -> None:
        super().__init__(env)
        self._names = tuple(names)
        flat: Any = spaces.flatten_space(env.action_space)
        low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
        limits = np.finfo(np.float32)
        self._lowest, self._highest = np.maximum(low, limits.min), np.minimum(high, limits.max)
        added: dict[str, Space] = {
            ACTION_MASK: spaces.MultiBinary(spaces.flatdim(env.action_space)),
            PREVIOUS_ACTION: spaces.Box(low, high),
            PREVIOUS_REWARD: spaces.Box(-np.inf, np.inf, (1,), np.float32),
        }
        entries: dict[str, Space] = dict(_entries(env.observation_space, env.observation_space))
        for name in self._names:
            if name in entries:
                key = "action_mask_from_info" if name == ACTION_MASK else name
                raise ConfigError(
                    f"env.{key} adds the entry {name} to the observation, which already has one. Set it to false, or "
                    "rename the environment's entry."
                )
        self.observation_space = spaces.Dict(entries | {name: added[name] for name in self._names})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment; nothing was done before."""
        observation, info = unpacked("reset", self.env.reset(seed=seed, options=options))
        return self._with(observation, info, None, 0.0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment; ``action`` and its reward are the previous ones of the next observation."""
        observation, reward, terminated, truncated, info = unpacked("step", self.env.step(action))
        return self._with(observation, info, action, reward), reward, terminated, truncated, info

    def _with(self, observation: Any, info: Any, action: Any, reward: Any) -> dict[str, Any]:
        entries = dict(_entries(self.env.observation_space, observation))
        if ACTION_MASK in self._names:
            entries[ACTION_MASK] = _mask_in(info)
        if PREVIOUS_ACTION in self._names:
            entries[PREVIOUS_ACTION] = np.zeros_like(self._lowest) if action is None else self._received(action)
        if PREVIOUS_REWARD in self._names:
            number = as_array(reward)
            # Invalid rewards are rejected with the others.
            valid = number.size == 1 and number.dtype.kind in "biuf"
            entries[PREVIOUS_REWARD] = number.reshape(1).astype(np.float32) if valid else np.zeros(1, np.float32)
        return entries

    def _received(self, action: Any) -> Array:
        flat: Any = spaces.flatten(self.env.action_space, action)
        return np.clip(flat, self._lowest, self._highest).astype(np.float32)


def _mask_in(info: Any) -> Array:
    if not isinstance(info, dict) or ACTION_MASK not in info:
        raise UnnamedEnvError(
            "returned no info['action_mask'], which env.action_mask_from_info=true requires. Set it to false, or have "
            "the environment return one at every reset and step."
        )
    mask = as_array(info[ACTION_MASK])
    # Its dtype is not specified.
    bits = mask != 0 if mask.dtype.kind in "biuf" else mask
    if not np.array_equal(bits, mask):
        raise UnnamedEnvError(f"returned an action mask with values other than 0 and 1: {mask}.")
    return bits


def _entries(space: Space, observation: Any) -> Mapping[str, Any]:
    """The entries of an observation, or of its space; one that is not a dict is the entry ``observation`` of one."""
    if not isinstance(space, spaces.Dict):
        return {OBSERVATION: observation}
    if not isinstance(observation, Mapping):
        raise UnnamedEnvError(f"returned a {type(observation).__name__} as observation, but its space is a dict.")
    return observation


def under_one_key(env: Env) -> Env:
    """Puts a dict observation under ``observation`` and a dict action under ``action``."""
    if isinstance(env.observation_space, spaces.Dict):
        space = spaces.Dict({OBSERVATION: env.observation_space})
        env = gymnasium.wrappers.TransformObservation(env, lambda observation: {OBSERVATION: observation}, space)
    if isinstance(env.action_space, spaces.Dict):
        space = spaces.Dict({ACTION: env.action_space})
        env = gymnasium.wrappers.TransformAction(env, lambda action: action[ACTION], space)
    return env
