"""Restarts of collection after environments or workers have failed."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tensordict import TensorDictBase

from recurrl.collector import collector_state
from recurrl.collector.rollouts import ReplacesWorkers, RolloutCollector
from recurrl.errors import RunError

MOST_IN_A_ROW = 3
"""Restarts without a success in between, after which environments are assumed to fail always."""

RESTARTS = "collect/restarts"

logger = logging.getLogger(__name__)


class Restarts:
    """Counts restarts.

    Args:
        on_fault: ``restart``, or ``raise`` to allow none.

    Attributes:
        count: restarts so far, including those before a resume.
    """

    def __init__(self, on_fault: str) -> None:
        self.allowed, self.count = on_fault == "restart", 0

    def after(self, fault: RunError, in_a_row: int, awaited: str) -> None:
        """Counts and logs a restart after a fault.

        Args:
            fault: the reason.
            in_a_row: restarts since the last success.
            awaited: the success, for the message.

        Raises:
            RunError: the fault if restarts are not allowed; or ``in_a_row`` has reached ``MOST_IN_A_ROW``.
        """
        if not self.allowed:
            raise fault
        if in_a_row == MOST_IN_A_ROW:
            raise RunError(f"After {MOST_IN_A_ROW} restarts in a row without {awaited}: {fault}") from fault
        self.count += 1
        logger.warning("New environments (restart %d): %s", self.count, fault)

    def metrics(self, others: float = 0.0) -> dict[str, float]:
        """Their number, if they are allowed, with those of the other ranks."""
        return {RESTARTS: self.count + others} if self.allowed else {}


class RestartingCollector:
    """A collector that is replaced when it fails, with new environments and processes.

    The new one begins new episodes, with unused seeds, and collects the whole batch again with the newest weights: the
    partial batch is lost. All workers are replaced, not only the one that failed, because a killed process may leave
    memory and locks that it shares with the others in any state. A collector whose workers share none replaces those
    that failed itself, see :class:`ReplacesWorkers`.

    Args:
        make: makes a collector; called with the number of restarts before it.
        restarts: counts them.

    Attributes:
        current: the current collector.

    Raises:
        ConfigError: raised by the first collector.
        RunError: likewise; later, ``MOST_IN_A_ROW`` restarts did not yield a batch.
    """

    def __init__(self, make: Callable[[int], RolloutCollector], restarts: Restarts) -> None:
        self._make, self._restarts = make, restarts
        self.current = make(0)
        self._found: RunError | None = None

    def __iter__(self) -> Iterator[TensorDictBase]:
        batches = iter(self.current)
        in_a_row = 0
        while True:
            try:
                if self._found is not None:
                    raise self._found
                batch = next(batches)
            except RunError as fault:
                self._found = None
                self._restarts.after(fault, in_a_row, "a batch")
                in_a_row += 1
                batches = self._restarted()
                continue
            in_a_row = 0
            yield batch

    def _restarted(self) -> Iterator[TensorDictBase]:
        """The batches after a restart, which happens with the first batch because it may fail too."""
        if isinstance(self.current, ReplacesWorkers):
            self.current.replace_failed(self._restarts.count)
        else:
            # Environments that failed may not close either.
            self.current.shutdown(raise_on_error=False)
            self.current = self._make(self._restarts.count)
        yield from self.current

    def metrics(self) -> dict[str, float]:
        """Those of the current collector, and the number of restarts."""
        return {**self.current.metrics(), **self._restarts.metrics()}

    def state_dict(self) -> dict[str, Any]:
        """The current collector's state, and the number of restarts."""
        state = collector_state.lost("they had failed")
        with self._found_here():
            state = self.current.state_dict()
        return {**state, "restarts": self._restarts.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores them.

        Raises:
            UnsavableError: the environments are constructed differently from the saved ones.
        """
        # Missing in checkpoints of runs with on_fault=raise.
        self._restarts.count = state.get("restarts", 0)
        with self._found_here():
            self.current.load_state_dict(state)

    @contextmanager
    def _found_here(self) -> Iterator[None]:
        """Stores a fault found between two batches, so that the next batch begins with a restart."""
        try:
            yield
        except RunError as fault:
            self._found = fault

    def shutdown(self, *, raise_on_error: bool = True) -> None:
        """Shuts the current collector down."""
        self.current.shutdown(raise_on_error=raise_on_error)
