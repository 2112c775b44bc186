"""Collection that survives failures of environments or workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tensordict import TensorDictBase
from torchrl.collectors import BaseCollector

from recurrl.collector import collector_state
from recurrl.collector.seeds import seeds
from recurrl.config import TrainConfig
from recurrl.errors import RunError

MOST_IN_A_ROW = 3
"""Restarts without a batch in between, after which environments are assumed to fail always."""

logger = logging.getLogger(__name__)


class RestartingCollector:
    """A collector that is replaced when it fails, with new environments and processes.

    The new one begins new episodes, with unused seeds, and collects the whole batch again with the newest weights: the
    partial batch is lost. All workers are replaced, not only the one that failed, because a killed process may leave
    memory and locks that it shares with the others in any state.

    Args:
        config: the run's configuration.
        make: makes the collector of a configuration that differs in the seed.

    Attributes:
        current: the current collector.
        restarts: number of restarts, including those before a resume.

    Raises:
        ConfigError: raised by the first collector.
        RunError: likewise; later, ``MOST_IN_A_ROW`` restarts did not yield a batch.
    """

    def __init__(self, config: TrainConfig, make: Callable[[TrainConfig], BaseCollector]) -> None:
        self._config, self._make = config, make
        self.current = make(config)
        self.restarts = 0
        self._found: RunError | None = None

    def __iter__(self) -> Iterator[TensorDictBase]:
        batches = iter(self.current)
        in_a_row = 0
        while True:
            try:
                self._raise_found()
                batch = next(batches)
            except RunError as fault:
                self.count_restart(fault, in_a_row, "a batch")
                in_a_row += 1
                batches = self._restarted()
                continue
            in_a_row = 0
            yield batch

    def count_restart(self, fault: RunError, in_a_row: int, awaited: str) -> None:
        """Counts and logs a restart after a fault.

        Args:
            fault: the reason.
            in_a_row: restarts since the last success.
            awaited: what a success would be, for the message.

        Raises:
            RunError: ``in_a_row`` has reached ``MOST_IN_A_ROW``.
        """
        if in_a_row == MOST_IN_A_ROW:
            raise RunError(f"After {MOST_IN_A_ROW} restarts in a row without {awaited}: {fault}") from fault
        self.restarts += 1
        logger.warning("New environments (restart %d): %s", self.restarts, fault)

    def _restarted(self) -> Iterator[TensorDictBase]:
        """The batches of a new collector, made with the first batch so that both may fail alike."""
        # Environments that failed may not close either.
        self.current.shutdown(raise_on_error=False)
        seed = seeds(self._config.seed, self.restarts * self._config.env.num_envs + 1)[-1]
        self.current = self._make(replace(self._config, seed=seed))
        yield from self.current

    def state_dict(self) -> dict[str, Any]:
        """The current collector's state, and the number of restarts."""
        state = collector_state.lost("they had failed")
        with self._found_here():
            state = self.current.state_dict()
        return {**state, "restarts": self.restarts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores it.

        Raises:
            UnsavableError: the environments are constructed differently from the saved ones.
        """
        # Missing in checkpoints of runs with on_fault=raise.
        self.restarts = state.get("restarts", 0)
        with self._found_here():
            self.current.load_state_dict(state)

    @contextmanager
    def _found_here(self) -> Iterator[None]:
        """Remembers a fault found between two batches, so that the next batch begins with a restart."""
        try:
            yield
        except RunError as fault:
            self._found = fault

    def _raise_found(self) -> None:
        if self._found is not None:
            fault, self._found = self._found, None
            raise fault

    def shutdown(self, raise_on_error: bool = True) -> None:
        """Shuts the current collector down."""
        self.current.shutdown(raise_on_error=raise_on_error)
