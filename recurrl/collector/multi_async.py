"""Workers that collect while learning goes on, with weights that are then a little older.

Each part of a batch is collected with one version of the weights, and holds the log-probabilities of that version, by
which the losses correct.

Shape legend: N environments, T steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torchrl.collectors import MultiAsyncCollector

from recurrl.collector import carry
from recurrl.collector.workers import Workers
from recurrl.config import TrainConfig
from recurrl.policy import Policy


class Part(NamedTuple):
    """The rows of one worker, and the version of the weights that they were collected with."""

    rows: TensorDictBase
    version: int


class AsyncCollector(Workers, MultiAsyncCollector):
    """Batches ``[N, T]``, rows in the order of the workers whichever was first.

    A worker goes on as soon as its rows are taken, but is never more than one batch ahead of the slowest.

    Attributes:
        staleness: updates between the weights that the last batch was collected with and those it was handed out to,
            on average over the workers.
    """

    staleness: float = 0.0

    def iterator(self) -> Iterator[TensorDictBase]:
        """Goes on for ever."""
        with self._supervised():
            # A checkpoint may have been loaded since the workers were started.
            self.weights.publish(self._learning)
            parts: list[deque[Part]] = [deque() for _ in range(self.num_workers)]
            for worker in range(self.num_workers):
                self._go_on(worker)
            self.running = True
            while True:
                while not all(parts):
                    self._take(parts)
                taken = [ready.popleft() for ready in parts]
                for worker, ahead in enumerate(parts):
                    if ahead:
                        self._go_on(worker)
                self.staleness = fmean(self.weights.version - part.version for part in taken)
                yield torch.cat([part.rows for part in taken]).to(self._device)
                self.weights.publish(self._learning)

    def _take(self, parts: list[deque[Part]]) -> None:
        """Takes the rows of the next worker that is ready, which goes on unless it is ahead of others."""
        worker, rows = self._receive()
        parts[worker].append(Part(rows.clone(), self.weights.used_by(worker)))
        if len(parts[worker]) == 1:
            self._go_on(worker)

    def state_dict(self) -> dict[str, Any]:
        """Nothing to go on from: between two batches workers are in the midst of others."""
        return carry.lost("the workers of collector=multi_async are in the midst of a batch whenever one is handed out")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Says that episodes begin anew."""
        carry.warn_if_lost(state)


def make(config: TrainConfig, policy: Policy) -> AsyncCollector:
    """The collector.

    Raises:
        RunError: a worker failed.
    """
    frames = config.frames_per_batch // config.collector.num_workers
    return AsyncCollector(config, policy, frames_per_batch=frames)
