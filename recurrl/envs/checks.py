"""Checks what environments return, and reports which one misbehaved and at which step.

Shape legend: N environments.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import NestedKey
from torch import Tensor

from recurrl.errors import ConfigError, EnvError, RunError

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
        env_id: likewise.
        at: index of the environment being called; None if all are called at once.
        steps: steps taken so far, by each.
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
        except UnnamedEnvError as fault:
            raise EnvError(f"{self.name(self.at)} {fault}") from fault.__cause__
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

    def error(self, i: int | None, fault: str) -> EnvError:
        """A fault of one of them, or of all."""
        return EnvError(f"{self.name(i)} {fault}")

    def name(self, i: int | None = None) -> str:
        """The beginning of a message about one environment, or about all."""
        which = f"Environment {i} of {self._count}" if i is not None else f"The vector environment of {self._count}"
        return f"{which} ({self.env_id}), at step {self.steps},"


@contextmanager
def making(asked: str) -> Iterator[None]:
    """Attributes exceptions to an environment or wrapper that is being made.

    Args:
        asked: the keys and values that name it.
    """
    try:
        yield
    except (ConfigError, RunError):
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"{asked} needs another package: {error}.") from error
    except Exception as error:
        raise EnvError(
            f"{asked} cannot be made: it raised {type(error).__name__}: {error}. HYDRA_FULL_ERROR=1 shows where."
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
