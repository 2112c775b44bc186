"""Checks what environments return, and reports which one misbehaved and at which step.

Shape legend: N environments, K choices of an action.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import NestedKey
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from recurrl.envs.spaces import Space, is_text, parts_of, spec_of, tuples_to_dicts
from recurrl.errors import ConfigError, EnvError, RunError, message_of
from recurrl.keys import ACTION_MASK, OBSERVATION, name_of
from recurrl.runtime.time_limit import TimeLimitError
from recurrl.specs import choices

Array = np.ndarray[Any, Any]

_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_RETURNS = {"step": "(observation, reward, terminated, truncated, info)", "reset": "(observation, info)"}
_REWARD, _FLAG = ("biuf", "a finite number"), ("biu", "True or False")


class UnnamedEnvError(Exception):
    """An environment misbehaved; :class:`EnvChecks` turns this into an :class:`EnvError` that names it."""


class EnvChecks:
    """Checks what environments return, and names the environment and the step in errors.

    Args:
        env_id: the environments' id.
        count: number of environments, N.

    Attributes:
        env_id: the environments' id.
        at: index of the environment being called; None if all are called at once.
        steps: steps of each environment so far.
    """

    def __init__(self, env_id: str, count: int) -> None:
        self.env_id, self._count = env_id, count
        self.at: int | None = None
        self.steps = 0

    @contextmanager
    def attributed(self, call: str) -> Iterator[None]:
        """Attributes exceptions in the block to the environment with the index ``at``, and counts steps."""
        self.steps += call == "step"
        try:
            yield
        except (ConfigError, EnvError):
            raise
        except UnnamedEnvError as unnamed:
            raise self.error(self.at, str(unnamed)) from unnamed.__cause__
        except TimeLimitError as late:
            raise self.error(self.at, f"did not return from {call}: {late}") from late
        except (Exception, SystemExit) as error:
            problem = f"raised {type(error).__name__} in {call}: {message_of(error)}. HYDRA_FULL_ERROR=1 shows where."
            raise self.error(self.at, problem) from error

    def results(self, rewards_N: Any, terminated_N: Any, truncated_N: Any) -> dict[NestedKey, Tensor]:
        """The entries ``reward``, ``terminated``, ``truncated`` and ``done`` of a step, ``[N, 1]`` each."""
        rewards = self._column("reward", rewards_N, *_REWARD)
        self.check_finite("reward", rewards)
        columns: dict[str, Array] = {"reward": rewards.astype(np.float32)}
        for name, flags_N in (("terminated", terminated_N), ("truncated", truncated_N)):
            flags = self._column(name, flags_N, *_FLAG)
            if flags.dtype.kind != "b":  # 0 and 1 may stand for them
                self.reject((flags != 0) & (flags != 1), flags, name, f"Have step return {_FLAG[1]}.")
            columns[name] = flags.astype(bool)
        columns["done"] = columns["terminated"] | columns["truncated"]
        return {key: torch.from_numpy(column.reshape(-1, 1)) for key, column in columns.items()}

    def check_finite(self, what: str, values_N: Array) -> None:
        """Rejects values that are NaN or infinite, or would be in float32."""
        # A sum of squares is finite only if all values are, and takes half the time.
        if values_N.dtype.kind != "f" or float(np.vdot(values_N, values_N)) < _MAX_FLOAT32:
            return
        wrong = ~(np.abs(values_N) <= min(_MAX_FLOAT32, float(np.finfo(values_N.dtype).max)))
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
        ones = [as_array(value) for value in values]
        for i, one in enumerate(ones):
            if one.size != 1 or one.dtype.kind not in kinds:
                got = f"{values[i]!r} of type {type(values[i]).__name__}"
                raise self.error(i, f"returned {name}={got}. Have step return {expected}.")
        return np.array([one.item() for one in ones])

    def error(self, i: int | None, problem: str) -> EnvError:
        """An error of environment ``i``, or of all if ``i`` is None."""
        which = f"Environment {i} of {self._count}" if i is not None else f"The vector environment of {self._count}"
        return EnvError(f"{which} ({self.env_id}), at step {self.steps}, {problem}")

    def check_values(self, observation: Mapping[NestedKey, Tensor], limits: Mapping[NestedKey, Any]) -> None:
        """Rejects values that are not finite or out of range.

        Args:
            observation: entries of all environments, on the CPU.
            limits: by entry, see :func:`recurrl.specs.limit_of`.
        """
        for key, values_N in observation.items():
            values, limit = values_N.numpy(), limits[key]
            if limit is None:
                self.check_finite(f"value of observation {name_of(key)!r}", values)
                continue
            most = np.asarray(limit, f"u{values.itemsize}")
            if (values.view(most.dtype) >= most).any():  # as unsigned integers, negative numbers are large
                what = f"a value of observation {name_of(key)!r} that is out of range"
                advice = f"Its space has the integers from 0 to {np.asarray(limit) - 1}."
                self.reject((values < 0) | (values >= limit), values, what, advice)

    def check_mask(self, mask_N: Tensor, action: TensorSpec, acting_N: Tensor | bool) -> None:
        """Rejects values that are neither 0 nor 1, and masks that allow no action.

        Args:
            mask_N: the masks of all environments, on the CPU.
            action: the spec of one environment's action.
            acting_N: which environments act next; True for all. The masks of the others are ignored.
        """
        masks = mask_N.numpy()
        self.reject((masks != 0) & (masks != 1), masks, "an action mask with values other than 0 and 1")
        forbidding = ~allows_actions(masks, action) & np.asarray(acting_N)
        advice = "Have the environment end the episode there, or allow an action that does nothing."
        self.reject(forbidding, masks, "an action mask that allows no action", advice)


def allows_actions(masks_N: Array, action: TensorSpec) -> Array:
    """``[N]``: true where a mask ``[N, K]`` allows an action; with several discrete ones, a choice for each."""
    starts = np.cumsum([0, *(choices(action) or ())[:-1]])
    return np.asarray(np.logical_or.reduceat(masks_N, starts, -1).all(-1))


class Observations:
    """Reads the entries of raw observations, without text.

    Args:
        space: the space of one environment's observation.
    """

    def __init__(self, space: Space) -> None:
        zeros = Composite({OBSERVATION: spec_of(tuples_to_dicts(space, text=False), 1)}, shape=[1])[0].zero()
        self._space, arrays = space, {key: value.numpy() for key, value in zeros.items(True, True)}
        self._entries = {key: (each.dtype, each.shape) for key, each in arrays.items()}

    def read(self, observation: Any, batch: tuple[int, ...] = ()) -> dict[NestedKey, Array]:
        """The entries of an observation.

        Args:
            observation: what an environment returned.
            batch: ``(N,)`` for the observations of N environments at once.

        Raises:
            UnnamedEnvError: an entry is missing, or differs from its space in shape or dtype.
        """
        entries = [as_array(value) for value in _leaves_in(self._space, observation)]
        read = dict(zip(self._entries, entries, strict=True))
        for key, (dtype, single_shape) in self._entries.items():
            shape = (*batch, *single_shape)
            if read[key].dtype != dtype or read[key].shape != shape:
                read[key] = _fitted(key, read[key], shape, dtype)
        return read


def _leaves_in(space: Space, value: Any) -> Iterator[Any]:
    """The leaves of an observation without text, in the order of its space."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield value
        return
    if isinstance(space, spaces.Tuple) and isinstance(value, Sequence):
        value = {str(i): part for i, part in enumerate(value)}
    if not isinstance(value, Mapping):
        kind = type(space).__name__.lower()
        raise UnnamedEnvError(f"returned an observation of type {type(value).__name__}, but its space is a {kind}.")
    parts = parts_of(space)
    wrong = value.keys() ^ parts.keys()
    if any(key not in parts or not is_text(parts[key]) for key in wrong):
        got, declared = (", ".join(map(str, keys)) or "none" for keys in (value, parts))
        raise UnnamedEnvError(
            f"returned an observation with the entries {got}, but its observation_space has {declared}. Have it return "
            "these entries."
        )
    for key, part in parts.items():
        if not is_text(part):
            yield from _leaves_in(part, value[key])


def mask_in(info: Any, shape: tuple[int, ...]) -> Array:
    """The action mask in the info of a reset or step, as int8.

    Raises:
        UnnamedEnvError: there is no mask, or it has another shape or values other than 0 and 1.
    """
    if not isinstance(info, dict) or ACTION_MASK not in info:
        raise UnnamedEnvError(
            "returned no info['action_mask'], which env.action_mask_from_info=true requires. Set it to false, or have "
            "the environment return one at every reset and step."
        )
    mask = as_array(info[ACTION_MASK])
    # A mask may have any dtype.
    bits = mask != 0 if mask.dtype.kind in "biuf" else mask
    if not np.array_equal(bits, mask):
        raise UnnamedEnvError(f"returned an action mask with values other than 0 and 1: {mask}.")
    return _fitted(ACTION_MASK, bits, shape, np.dtype(np.int8))


def _fitted(key: NestedKey, entry: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    # A scalar may stand for a vector of one entry, which its spec has.
    if (entry.shape == shape or (*entry.shape, 1) == shape) and is_castable(entry.dtype, dtype):
        fitted = entry.astype(dtype).reshape(shape)
        if dtype.kind == "f" or np.array_equal(fitted, entry.reshape(shape)):
            return fitted
        raise UnnamedEnvError(f"gave the observation {name_of(key)!r} values that {dtype} cannot represent: {entry}.")
    raise UnnamedEnvError(
        f"gave the observation {name_of(key)!r} the shape {entry.shape} and the dtype {entry.dtype}, but its space "
        f"has {shape} and {dtype}. Have the environment return observations that match its observation_space."
    )


def is_castable(dtype: np.dtype[Any], declared: np.dtype[Any]) -> bool:
    """True if an entry of an observation may have this dtype rather than that of its space."""
    # Bytes instead of floats are usually an image that was not divided by 255.
    return np.can_cast(dtype, declared, "same_kind") and not (dtype == np.uint8 and declared.kind == "f")


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
        raise ConfigError(f"{setting} needs another package: {message_of(error)}.") from error
    except Exception as error:
        raise EnvError(
            f"{setting} cannot be made: it raised {type(error).__name__}: {message_of(error)}. "
            "HYDRA_FULL_ERROR=1 shows where."
        ) from error


def unpacked(call: str, returned: Any) -> Any:
    """What a call returned, after checking that it is a tuple of the length that Gymnasium's interface requires."""
    if not isinstance(returned, (tuple, list)) or len(returned) != _RETURNS[call].count(",") + 1:
        what = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else f"a {type(returned).__name__}"
        raise UnnamedEnvError(f"returned {what} from {call}. Have it return {_RETURNS[call]}.")
    return returned


def as_array(value: Any) -> Array:
    """A value as an array; an array of None if its parts differ in shape."""
    try:
        return np.asarray(value)
    except ValueError:
        return np.array(None)
