"""Workers that collect during learning, with slightly older weights.

Each part of a batch is collected with one version of the weights and holds that version's log-probabilities, which the
losses correct for.

Shape legend: N environments, T steps.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torchrl.collectors import MultiAsyncCollector

from recurrl.collector import collector_state
from recurrl.collector.rollouts import Rollouts
from recurrl.collector.workers import Workers
from recurrl.config.collector import MultiAsyncConfig


class Part(NamedTuple):
    """The rows of one worker, and the version of the weights that they were collected with."""

    rows: TensorDictBase
    version: int


class AsyncCollector(Workers, MultiAsyncCollector):
    """Rollouts ``[N, T]`` with rows in the order of the workers, whichever finished first.

    A worker continues as soon as its rows are taken, but is never more than one rollout ahead of the slowest.

    Args:
        options: as configured.
        rollouts: what to collect.
    """

    _staleness: float = 0.0

    def __init__(self, options: MultiAsyncConfig, rollouts: Rollouts) -> None:
        super().__init__(options, rollouts, frames_per_batch=rollouts.frames // options.num_workers)

    def iterator(self) -> Iterator[TensorDictBase]:
        """An endless iterator."""
        with self._supervised():
            # A checkpoint may have been loaded since the workers were started.
            self.weights.publish(self._learning)
            parts: list[deque[Part]] = [deque() for _ in range(self.num_workers)]
            for worker in range(self.num_workers):
                self._continue(worker)
            self.running = True
            while True:
                while not all(parts):
                    self._take(parts)
                taken = [ready.popleft() for ready in parts]
                for worker, ahead in enumerate(parts):
                    if ahead:
                        self._continue(worker)
                self._staleness = fmean(self.weights.version - part.version for part in taken)
                yield torch.cat([part.rows for part in taken]).to(self._device)
                self.weights.publish(self._learning)

    def _take(self, parts: list[deque[Part]]) -> None:
        """Takes the rows of the next ready worker, which continues unless it is ahead of others."""
        worker, rows = self._receive()
        parts[worker].append(Part(rows.clone(), self.weights.used_by(worker)))
        if len(parts[worker]) == 1:
            self._continue(worker)

    def metrics(self) -> dict[str, float]:
        """The mean number of updates since the weights with which workers collected the last rollout."""
        return {"collect/staleness": self._staleness}

    def state_dict(self) -> dict[str, Any]:
        """No episodes: workers are always in the middle of a batch."""
        return collector_state.lost("the workers of collector=multi_async are always in the middle of a batch")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Logs that unfinished episodes are restarted."""
        collector_state.warn_if_lost(state)


make = AsyncCollector
