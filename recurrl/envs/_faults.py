"""What is said of environments that do what they must not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from recurrl.errors import ConfigError, EnvironmentFaultError

Array = np.ndarray[Any, Any]


class Faults:
    """Finds faults of environments side by side, and says which of them it was, and at which of its steps.

    Args:
        env_id: the environments' registered id.
        count: how many there are.

    Attributes:
        env_id: likewise.
        at: index of the environment that is being called; None where all are at once.
        steps: steps taken so far, by each.
    """

    def __init__(self, env_id: str, count: int) -> None:
        self.env_id, self._count = env_id, count
        self.at: int | None = None
        self.steps = 0

    def check_fits(self, key: Any, entry: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Refuses what is observed where it is not of the shape, or not of the kind, that its space says."""
        # A number may stand for a vector of one, which is what its specification is.
        fits = entry.shape == shape or (entry.ndim == 0 and shape == (1,))
        if not fits or not np.can_cast(entry.dtype, dtype, "same_kind"):
            raise EnvironmentFaultError(
                f"{self.name(self.at)} gave the observation {key!r} the shape {entry.shape} and the dtype "
                f"{entry.dtype}, but its space has {shape} and {dtype}. Let the environment return what its "
                "observation_space says."
            )

    def check_finite(self, what: str, values_N: Array) -> None:
        """Refuses numbers that are none."""
        # What is not finite makes the sum of the squares so, which takes half as long to see.
        if values_N.dtype.kind != "f" or math.isfinite(np.vdot(values_N, values_N)):
            return
        if not np.isfinite(values_N).all():
            i = int(np.argwhere(~np.isfinite(values_N))[0][0])
            raise EnvironmentFaultError(
                f"{self.name(i)} gave a {what} that is not finite: {values_N[i]}. Let the environment clip it, or end "
                "the episode before."
            )

    @contextmanager
    def blamed(self, call: str) -> Iterator[None]:
        """Says of what an environment raises in a call which one it was: the one that ``at`` is the index of."""
        try:
            yield
        except (ConfigError, EnvironmentFaultError):
            raise
        except Exception as error:
            raise EnvironmentFaultError(
                f"{self.name(self.at)} raised {type(error).__name__} in {call}: {str(error).rstrip('.')}. "
                "HYDRA_FULL_ERROR=1 shows where."
            ) from error

    def name(self, i: int | None = None) -> str:
        """How a sentence about one of them begins, or about all."""
        which = f"Environment {i} of {self._count}" if i is not None else f"The vector environment of {self._count}"
        return f"{which} ({self.env_id}), at step {self.steps},"
