"""Reads the entries of observations and rejects those that do not match their space.

Shape legend: N environments.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from gymnasium import spaces
from tensordict import NestedKey
from torchrl.data import Composite

from recurrl.envs.checks import Array, EnvChecks, UnnamedEnvError, as_array
from recurrl.envs.spaces import leaves, spec_of
from recurrl.keys import ACTION_MASK, OBSERVATION, path_of

Space = spaces.Space[Any]


class Observations:
    """The entries of an observation, by the names that lead to each within it.

    Args:
        checks: names the environment at fault.
        space: of an environment's observation.
        count: number of environments, N.
        action_space: the space that an action mask applies to.
        batched: observations of all environments are read at once rather than one by one.

    Attributes:
        keys: of the entries, in the order in which they are read.
        zeros_N: an array of each entry for all environments, by key.
    """

    def __init__(self, checks: EnvChecks, space: Space, count: int, action_space: Space, batched: bool = False) -> None:
        zeros = Composite({OBSERVATION: spec_of(space, count)}, shape=[count]).zero()
        self.zeros_N = {key: values.numpy() for key, values in zeros.items(True, True)}
        self._checks, self.keys = checks, list(self.zeros_N)
        found = dict(leaves(space))
        self._limits = {key: limit_of(found[path_of(key)[1:]]) for key in self.keys}
        first = 0 if batched else 1
        self._entries = [(key, path_of(key)[1:], each.dtype, each.shape[first:]) for key, each in self.zeros_N.items()]
        self._plain = not isinstance(space, spaces.Dict)
        self._dicts = list(_dict_sizes(space))
        self._starts = starts_of_choices(action_space)

    def read(self, observation: Any) -> list[Array]:
        """The entries of an observation, in the order of ``keys``.

        Raises:
            UnnamedEnvError: an entry is missing, or differs from its space in shape or dtype.
        """
        found = [as_array(observation)] if self._plain else self._parts(observation)
        for i, (key, _, dtype, shape) in enumerate(self._entries):
            if found[i].dtype != dtype or found[i].shape != shape:
                found[i] = _fitted(key, found[i], shape, dtype)
        return found

    def _parts(self, observation: Any) -> list[Array]:
        try:
            found = [as_array(reduce(getitem, path, observation)) for _, path, _, _ in self._entries]
            extra = any(len(reduce(getitem, path, observation)) != size for path, size in self._dicts)
        except (KeyError, IndexError, TypeError) as error:
            keys = ", ".join(".".join(path) for _, path, _, _ in self._entries)
            raise UnnamedEnvError(
                f"returned an observation that lacks entries ({type(error).__name__}: {error}). Have it return a dict "
                f"with the entries of its observation_space: {keys}."
            ) from error
        if extra:
            raise UnnamedEnvError(
                "returned an observation with entries missing from its observation_space. Declare them there."
            )
        return found

    def check(self, values_N: Mapping[NestedKey, Array], acting_N: Array | None = None) -> None:
        """Rejects values that are not finite or out of range, and masks that allow no action.

        Args:
            values_N: of all environments.
            acting_N: which of them act next; None for all. The masks of the others are ignored.
        """
        for key, values in values_N.items():
            limit = self._limits[key]
            if limit is None:
                self._checks.check_finite(f"value of observation {key!r}", values)
            elif (values.view(f"u{values.itemsize}") >= limit).any():  # negative numbers are large ones without a sign
                what = f"a value of observation {key!r} that is out of range"
                advice = f"Its space has the integers from 0 to {np.asarray(limit) - 1}."
                self._checks.reject((values < 0) | (values >= limit), values, what, advice)
            if key == (OBSERVATION, ACTION_MASK):
                self._check_mask(values, acting_N)

    def _check_mask(self, masks_N: Array, acting_N: Array | None) -> None:
        unfit = (masks_N != 0) & (masks_N != 1)
        self._checks.reject(unfit, masks_N, "an action mask with values other than 0 and 1")
        forbidding_N = ~np.logical_or.reduceat(masks_N, self._starts, -1).all(-1)
        if acting_N is not None:
            forbidding_N &= acting_N
        advice = "Have the environment end the episode there, or allow an action that does nothing."
        self._checks.reject(forbidding_N, masks_N, "an action mask that allows no action", advice)


def starts_of_choices(action_space: Space) -> Array:
    """The offsets within a mask of each entry of a multi-discrete action; 0 for other actions."""
    sizes: Any = action_space.nvec[:-1] if isinstance(action_space, spaces.MultiDiscrete) else []
    return np.cumsum([0, *sizes])


def _fitted(key: NestedKey, entry: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    # A scalar may stand for a vector of one, as in its spec.
    if (entry.shape == shape or (*entry.shape, 1) == shape) and is_castable(entry.dtype, dtype):
        fitted = entry.astype(dtype).reshape(shape)
        if dtype.kind == "f" or np.array_equal(fitted, entry.reshape(shape)):
            return fitted
        raise UnnamedEnvError(f"gave the observation {key!r} values that {dtype} cannot represent: {entry}.")
    raise UnnamedEnvError(
        f"gave the observation {key!r} the shape {entry.shape} and the dtype {entry.dtype}, but its space has {shape} "
        f"and {dtype}. Have the environment return observations that match its observation_space."
    )


def is_castable(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """True if an entry of an observation may have the dtype ``found`` instead of that of its space."""
    # Bytes instead of floats are usually an image that was not divided by 255.
    return np.can_cast(found, wanted, "same_kind") and not (found == np.uint8 and wanted.kind == "f")


def limit_of(space: Space) -> Any:
    """The number of values each number of an observation can take; None if unlimited."""
    if isinstance(space, spaces.Discrete):
        return np.uint64(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.astype(np.uint64)
    return np.uint8(2) if isinstance(space, spaces.MultiBinary) else None


def _dict_sizes(space: Space, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """The dicts within an observation, and their numbers of entries."""
    if isinstance(space, spaces.Dict):
        yield path, len(space.spaces)
        for name, part in space.spaces.items():
            yield from _dict_sizes(part, (*path, name))
