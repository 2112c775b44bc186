"""Collection that goes on after environments or workers failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tensordict import TensorDictBase
from torchrl.collectors import BaseCollector

from recurrl.collector import carry
from recurrl.collector.seeds import seeds
from recurrl.config import TrainConfig
from recurrl.errors import RunError

MOST_IN_A_ROW = 3
"""Restarts without a batch in between: environments that always fail are not worth more."""

logger = logging.getLogger(__name__)


class RestartingCollector:
    """A collector in whose place another one is made when it fails, with environments and processes of its own.

    The new one begins new episodes, with seeds that were not used before, and collects the batch again from its
    beginning: what had been collected of it is lost, the weights are the newest. All workers are made anew, not only
    the one that failed, because a process that is killed may leave what it shares with the others in any state.

    Args:
        config: the run's configuration.
        make: makes the collector of a configuration that differs in the seed.

    Attributes:
        current: the collector of now.
        restarts: how many there were, those before a resume included.

    Raises:
        ConfigError: whatever the first collector raises.
        RunError: likewise; later, a batch could not be collected by as many collectors as are worth trying.
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
            fault: why.
            in_a_row: restarts since something was last achieved.
            awaited: what that would be now.

        Raises:
            RunError: those are as many as are worth trying.
        """
        if in_a_row == MOST_IN_A_ROW:
            raise RunError(f"After {MOST_IN_A_ROW} restarts in a row without {awaited}: {fault}") from fault
        self.restarts += 1
        logger.warning("New environments (restart %d): %s", self.restarts, fault)

    def _restarted(self) -> Iterator[TensorDictBase]:
        """The batches of a new collector. It is made when the first one is asked for, so that it may fail like it."""
        # Environments that failed may not close either.
        self.current.shutdown(raise_on_error=False)
        seed = seeds(self._config.seed, self.restarts * self._config.env.num_envs + 1)[-1]
        self.current = self._make(replace(self._config, seed=seed))
        yield from self.current

    def state_dict(self) -> dict[str, Any]:
        """As the collector of now gives it, and the number of restarts."""
        state = carry.lost("they had failed")
        with self._found_here():
            state = self.current.state_dict()
        return {**state, "restarts": self.restarts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there.

        Raises:
            UnsavableError: the environments are not made as those that were saved.
        """
        # What was written with on_fault=raise counts none.
        self.restarts = state.get("restarts", 0)
        with self._found_here():
            self.current.load_state_dict(state)

    @contextmanager
    def _found_here(self) -> Iterator[None]:
        """Keeps a fault that shows between two batches, for the next one to be collected after a restart."""
        try:
            yield
        except RunError as fault:
            self._found = fault

    def _raise_found(self) -> None:
        if self._found is not None:
            fault, self._found = self._found, None
            raise fault

    def shutdown(self, raise_on_error: bool = True) -> None:
        """Ends the collector of now."""
        self.current.shutdown(raise_on_error=raise_on_error)
