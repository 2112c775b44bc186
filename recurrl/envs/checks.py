"""Checks what environments return, and reports which one misbehaved and at which step.

Shape legend: N environments.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from operator import getitem
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import NestedKey
from torch import Tensor
from torchrl.data import Composite

from recurrl.envs.spaces import Space, leaves, spec_of
from recurrl.errors import ConfigError, EnvError, RunError
from recurrl.keys import ACTION_MASK, OBSERVATION, path_of

Array = np.ndarray[Any, Any]

_LARGEST = float(np.finfo(np.float32).max)
_RETURNS = {"step": "(observation, reward, terminated, truncated, info)", "reset": "(observation, info)"}
_LENGTHS = {call: returned.count(",") + 1 for call, returned in _RETURNS.items()}
_REWARD, _FLAG = ("biuf", "a finite number"), ("biu", "True or False")


class UnnamedEnvError(Exception):
    """An environment misbehaved; :class:`EnvChecks` puts its name before the message, as an :class:`EnvError`."""


class EnvChecks:
    """Checks what environments return, and names the environment and the step in errors.

    Args:
        env_id: the environments' registered id.
        count: number of environments, N.

    Attributes:
        env_id: the environments' registered id.
        at: index of the environment being called; None if all are called at once.
        steps: steps so far, of each.
    """

    def __init__(self, env_id: str, count: int) -> None:
        self.env_id, self._count = env_id, count
        self.at: int | None = None
        self.steps = 0

    @contextmanager
    def attributed(self, call: str) -> Iterator[None]:
        """Attributes exceptions in a call to the environment with the index ``at``, and counts steps."""
        self.steps += call == "step"
        try:
            yield
        except (ConfigError, EnvError):
            raise
        except UnnamedEnvError as unnamed:
            raise EnvError(f"{self.name(self.at)} {unnamed}") from unnamed.__cause__
        except (Exception, SystemExit) as error:
            raise EnvError(
                f"{self.name(self.at)} raised {type(error).__name__} in {call}: {_message(error)}. "
                "HYDRA_FULL_ERROR=1 shows where."
            ) from error

    def flags(self, name: str, values_N: Any) -> Array:
        """The flags ``terminated`` or ``truncated`` of all environments ``[N]``; 0 and 1 may stand for them."""
        column = self._column(name, values_N, *_FLAG)
        if column.dtype.kind != "b":
            wrong = (column != 0) & (column != 1)
            if wrong.any():
                i = int(wrong.argmax())
                raise self.error(i, f"returned {name}={column[i]}. Have step return {_FLAG[1]}.")
        return column.astype(bool)

    def results(self, rewards_N: Any, terminated_N: Any, truncated_N: Any) -> dict[NestedKey, Tensor]:
        """The entries ``reward``, ``terminated``, ``truncated`` and ``done`` of a step, ``[N, 1]`` each."""
        rewards = self._column("reward", rewards_N, *_REWARD)
        self.check_finite("reward", rewards)
        columns = {
            "reward": rewards.astype(np.float32),
            "terminated": self.flags("terminated", terminated_N),
            "truncated": self.flags("truncated", truncated_N),
        }
        columns["done"] = columns["terminated"] | columns["truncated"]
        return {key: torch.from_numpy(column.reshape(-1, 1)) for key, column in columns.items()}

    def check_finite(self, what: str, values_N: Array) -> None:
        """Rejects values that are NaN or infinite, or would be in float32."""
        # A sum of squares is finite only if all values are, and takes half the time.
        if values_N.dtype.kind != "f" or float(np.vdot(values_N, values_N)) < _LARGEST:
            return
        wrong = ~(np.abs(values_N) <= min(_LARGEST, float(np.finfo(values_N.dtype).max)))
        advice = "Have the environment clip it, or end the episode earlier."
        self.reject(wrong, values_N, f"a non-finite {what}", advice)

    def reject(self, wrong_N: Any, values_N: Array, what: str, advice: str = "") -> None:
        """Rejects the values of the first environment for which something in ``wrong_N`` is true."""
        if wrong_N.any():
            i = int(np.argwhere(wrong_N)[0][0])
            raise self.error(i, f"returned {what}: {values_N[i]}. {advice}".rstrip())

    def _column(self, name: str, values: Any, kinds: str, expected: str) -> Array:
        column = as_array(values)
        if column.shape == (self._count,) and column.dtype.kind in kinds:
            return column
        if not isinstance(values, list | np.ndarray) or len(values) != self._count:
            raise self.error(
                None, f"returned {name}s of shape {np.shape(column)}. Have step return one per environment."
            )
        return np.array([self._one(i, name, value, kinds, expected) for i, value in enumerate(values)])

    def _one(self, i: int, name: str, value: Any, kinds: str, expected: str) -> Any:
        one = as_array(value)
        if one.size != 1 or one.dtype.kind not in kinds:
            raise self.error(
                i, f"returned the {name} {value!r}, a {type(value).__name__}. Have step return {expected}."
            )
        return one.item()

    def error(self, i: int | None, problem: str) -> EnvError:
        """An error of one of them, or of all."""
        return EnvError(f"{self.name(i)} {problem}")

    def name(self, i: int | None = None) -> str:
        """The beginning of a message about one environment, or about all."""
        which = f"Environment {i} of {self._count}" if i is not None else f"The vector environment of {self._count}"
        return f"{which} ({self.env_id}), at step {self.steps},"


class Observations:
    """The entries of an observation, by the names that lead to each within it.

    Args:
        checks: names the environment in errors.
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
            return [as_array(reduce(getitem, path, observation)) for _, path, _, _ in self._entries]
        except (KeyError, IndexError, TypeError) as error:
            keys = ", ".join(".".join(path) for _, path, _, _ in self._entries)
            raise UnnamedEnvError(
                f"returned an observation that lacks entries ({type(error).__name__}: {error}). Have it return a dict "
                f"with the entries of its observation_space: {keys}."
            ) from error

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


@contextmanager
def making(setting: str) -> Iterator[None]:
    """Attributes exceptions to an environment or wrapper that is being made.

    Args:
        setting: the keys and values that name it.
    """
    try:
        yield
    except (ConfigError, RunError):
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"{setting} needs another package: {error}.") from error
    except Exception as error:
        raise EnvError(
            f"{setting} cannot be made: it raised {type(error).__name__}: {error}. HYDRA_FULL_ERROR=1 shows where."
        ) from error


def unpacked(call: str, returned: Any) -> Any:
    """The tuple that a call returned; anything but the length that Gymnasium's interface requires is an error."""
    if not isinstance(returned, (tuple, list)) or len(returned) != _LENGTHS[call]:
        found = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else f"a {type(returned).__name__}"
        raise UnnamedEnvError(f"returned {found} from {call}. Have it return {_RETURNS[call]}.")
    return returned


def as_array(value: Any) -> Array:
    """A value as an array, of dtype object if its parts differ in shape."""
    try:
        return np.asarray(value)
    except ValueError:
        return np.array(None)


def _message(error: BaseException) -> str:
    try:
        return str(error).rstrip(".")
    except Exception as raised:  # __str__ is the environment's code too
        return f"({type(raised).__name__} in its __str__)"
