"""Restarts after environments or workers have failed."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tensordict import TensorDictBase

from recurrl.collector.collector import FAILED, RestartableCollector
from recurrl.errors import NonFiniteError, RunError
from recurrl.runtime.ranks import world

MAX_IN_A_ROW = 3
"""Restarts without a success in between, after which the environments are assumed to be broken."""

RESTARTS = "collect/restarts"

logger = logging.getLogger(__name__)


class Restarts:
    """Counts restarts.

    Args:
        on_env_error: ``restart``, or ``raise`` to allow none.

    Attributes:
        count: restarts so far; on rank 0 this includes the restarts of all ranks before a resume.
    """

    def __init__(self, on_env_error: str) -> None:
        self.allowed, self.count = on_env_error == "restart", 0

    def record(self, error: RunError, consecutive: int, expected: str) -> None:
        """Counts and logs a restart after an error.

        Args:
            error: the reason.
            consecutive: restarts since the last success.
            expected: what the restart was meant to yield, such as ``a rollout``, for the message.

        Raises:
            RunError: restarts are not allowed, or ``consecutive`` has reached ``MAX_IN_A_ROW``.
        """
        if not self.allowed:
            raise error
        if consecutive == MAX_IN_A_ROW:
            raise RunError(f"After {MAX_IN_A_ROW} restarts in a row without {expected}: {error}") from error
        self.count += 1
        logger.warning("Restart %d, with new episodes: %s", self.count, error)


class RestartingCollector:
    """A collector that replaces environments and workers that fail.

    New ones begin new episodes, with unused seeds, and act with the newest weights.

    Args:
        collector: the collector to restart.
        restarts: counts its restarts.
        seed_after: maps the number of restarts to the seed of the new environments.
    """

    def __init__(self, collector: RestartableCollector, restarts: Restarts, seed_after: Callable[[int], int]) -> None:
        self.collector, self._restarts, self._seed_after = collector, restarts, seed_after
        self._error: RunError | None = None

    def collect(self) -> TensorDictBase:
        """The next rollout.

        Raises:
            RunError: there was no rollout after ``MAX_IN_A_ROW`` restarts.
        """
        consecutive = 0
        while True:
            if self._error is None:
                with self._error_stored():
                    return self.collector.collect()
            else:
                self._restarts.record(self._error, consecutive, "a rollout")
                self._error, consecutive = None, consecutive + 1
                with self._error_stored():
                    self.collector.restart(self._seed_after(self._restarts.count))

    def metrics(self) -> dict[str, float]:
        """The metrics of the collector, and the restarts: times the ranks, because metrics are averaged over ranks."""
        return {**self.collector.metrics(), RESTARTS: float(self._restarts.count * world().size)}

    def state_dict(self) -> dict[str, Any]:
        """The collector's state. The number of restarts is among the checkpoint's metrics."""
        state: dict[str, Any] = {"unsavable_reason": FAILED}
        with self._error_stored():
            state.update(self.collector.state_dict())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the collector's state.

        Raises:
            UnsavableError: the environments are constructed differently from the saved ones.
        """
        with self._error_stored():
            self.collector.load_state_dict(state)

    @contextmanager
    def _error_stored(self) -> Iterator[None]:
        """Stores an error, so that the next rollout begins with a restart."""
        try:
            yield
        except NonFiniteError:
            raise
        except RunError as error:
            self._error = error

    def shutdown(self, *, raise_on_error: bool = True) -> None:
        """Closes environments and ends processes."""
        self.collector.shutdown(raise_on_error=raise_on_error)
