"""The form in which policies see a Gymnasium environment.

A plain observation stays one. An observation of several entries, be they the environment's own, a mask of actions, or
the previous action and reward, becomes a dict, and so do actions of several parts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from recurrl.config import EnvConfig
from recurrl.envs.checks import Array, UnnamedEnvError, as_array, unpacked
from recurrl.envs.spaces import Space, parts_of, supported_spaces
from recurrl.errors import ConfigError
from recurrl.keys import ACTION_MASK, HIDDEN, OBSERVATION, PREVIOUS_ACTION, PREVIOUS_REWARD

Env = gymnasium.Env[Any, Any]


class Prepared(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment in the form that policies need.

    Parts of tuples are the entries ``0``, ``1``, and so on of dicts, text is left out, and so is what ``env.mask``
    names. Bounded continuous actions are in units of half their range, −1 and 1 being the bounds, and are clipped.

    The observation gets further entries as configured: the mask of actions in the info, and the previous action and
    reward. ``action_mask`` has one number per choice; those of several discrete actions are concatenated.
    ``previous_action`` is what the environment received, after clipping: continuous entries unchanged, discrete ones as
    one-hot vectors, the parts of a composite concatenated. It and ``previous_reward``, of size 1, are zero at an
    episode's first step.

    Args:
        env: the environment.
        options: as configured.
        privileged: what ``env.mask`` hides of a vector is the entry ``hidden`` of a dict, the rest ``observation``.

    Raises:
        ConfigError: the policy cannot handle the spaces, or they do not fit the options.
    """

    def __init__(self, env: Env, options: EnvConfig, privileged: bool = False) -> None:
        super().__init__(env)
        supported = supported_spaces(options.id, env.observation_space, env.action_space)
        space, self._shown = shown(env.observation_space, supported[0], options.mask, privileged)
        self.action_space, self._to_env = normalised_actions(env.action_space)
        self._names, self._has_entries = added_entries(options), isinstance(space, spaces.Dict)
        self.observation_space = self._extended(space) if self._names else space

    def _extended(self, space: Space) -> Space:
        flat: Any = spaces.flatten_space(self.action_space)
        low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
        limits = np.finfo(np.float32)
        self._lowest, self._highest = np.maximum(low, limits.min), np.minimum(high, limits.max)
        added: dict[str, Space] = {
            ACTION_MASK: spaces.MultiBinary(spaces.flatdim(self.action_space)),
            PREVIOUS_ACTION: spaces.Box(low, high),
            PREVIOUS_REWARD: spaces.Box(-np.inf, np.inf, (1,), np.float32),
        }
        entries = parts_of(space) or {OBSERVATION: space}
        for name in self._names:
            if name in entries:
                key = "action_mask_from_info" if name == ACTION_MASK else name
                raise ConfigError(
                    f"env.{key} adds the entry {name} to the observation, which already has one. Set it to false, or "
                    "rename the environment's entry."
                )
        return spaces.Dict(entries | {name: added[name] for name in self._names})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment; nothing was done before."""
        observation, info = unpacked("reset", self.env.reset(seed=seed, options=options))
        return self._with_added(self._shown(observation), info, None, 0.0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment; ``action`` and its reward are the previous ones of the next observation."""
        returned = unpacked("step", self.env.step(self._to_env(action)))
        observation, reward, terminated, truncated, info = returned
        return self._with_added(self._shown(observation), info, action, reward), reward, terminated, truncated, info

    def _with_added(self, observation: Any, info: Any, action: Any, reward: Any) -> Any:
        if not self._names:
            return observation
        entries = dict(observation) if self._has_entries else {OBSERVATION: observation}
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
        flat: Any = spaces.flatten(self.action_space, action)
        return np.clip(flat, self._lowest, self._highest).astype(np.float32)


def shown(
    space: Space, supported: Space, mask: Sequence[int | str], privileged: bool = False
) -> tuple[Space, Callable[[Any], Any]]:
    """The space of what a policy sees, and the map to it from ``space``, for one observation or a batch.

    Args:
        space: of the environment's observations.
        supported: the same in the form of :func:`supported_spaces`.
        mask: the indices of a vector's entries to hide, or the names of a dict's.
        privileged: see :class:`Prepared`.

    Raises:
        ConfigError: an entry the observation does not have, or nothing would be left.
    """
    if not mask:
        return supported, (lambda observation: _part(space, supported, observation))
    seen_space, seen = seen_entries(supported, mask)
    if isinstance(supported, spaces.Dict):
        if privileged:
            raise ConfigError(
                "algorithm.critic_observation must name the entries of a dict that only the critic sees (got hidden). "
                f"Give [{', '.join(map(str, mask))}], and leave env.mask out."
            )
        return seen_space, (lambda observation: _part(space, seen_space, observation))
    if not privileged:
        return seen_space, (lambda observation: as_array(observation)[..., seen])
    hidden_space, hidden = seen_entries(supported, seen.tolist())
    indices = {OBSERVATION: seen, HIDDEN: hidden}
    both = spaces.Dict({OBSERVATION: seen_space, HIDDEN: hidden_space})
    return both, (lambda observation: {name: as_array(observation)[..., each] for name, each in indices.items()})


def _part(space: Space, seen: Space, value: Any) -> Any:
    """What ``seen`` has of an observation, with names for the parts of tuples."""
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, Sequence) or len(value) != len(space.spaces):
            raise UnnamedEnvError(
                f"returned an observation that is not a tuple of {len(space.spaces)}, as its space is: {value}."
            )
        value = {str(i): part for i, part in enumerate(value)}
    elif not isinstance(space, spaces.Dict):
        return value
    elif not isinstance(value, Mapping):
        raise UnnamedEnvError(f"returned a {type(value).__name__} as observation, but its space is a dict.")
    parts, kept = parts_of(space), parts_of(seen)
    if value.keys() - parts.keys():
        raise UnnamedEnvError(
            "returned an observation with entries missing from its observation_space. Declare them there."
        )
    return {key: _part(parts[key], kept[key], part) for key, part in value.items() if key in kept}


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


def normalised_actions(space: Space) -> tuple[Space, Callable[[Any], Any]]:
    """The space that a policy acts in, and the map from there to ``space``, for one action or a batch.

    Dicts stand for tuples. Dimensions of a Box are independent: in one with two finite bounds −1 and 1 stand for them,
    one with equal bounds always has that value (and zero as its only action), and any other is only clipped.
    """
    if parts := {key: normalised_actions(part) for key, part in parts_of(space).items()}:
        units = spaces.Dict({key: part[0] for key, part in parts.items()})

        def of_parts(action: Any) -> Any:
            scaled = {key: scale(action[key]) for key, (_, scale) in parts.items()}
            return tuple(scaled.values()) if isinstance(space, spaces.Tuple) else scaled

        return units, of_parts
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


def without_names(space: Space, value: Any) -> Any:
    """An action in which dicts stand for tuples, as ``space`` has it."""
    if isinstance(space, spaces.Tuple):
        return tuple(without_names(part, value[str(i)]) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Dict):
        return {key: without_names(part, value[key]) for key, part in space.spaces.items()}
    return value


def added_entries(options: EnvConfig) -> list[str]:
    """The entries that the options of an environment add to its observation."""
    settings = {
        ACTION_MASK: options.action_mask_from_info,
        PREVIOUS_ACTION: options.previous_action,
        PREVIOUS_REWARD: options.previous_reward,
    }
    return [name for name, is_added in settings.items() if is_added]


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
