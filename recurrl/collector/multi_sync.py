"""Workers that collect side by side, while learning waits, and learning, while they wait.

Shape legend: N environments, T steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tensordict import TensorDictBase
from torchrl.collectors import MultiSyncCollector

from recurrl.collector.workers import Workers
from recurrl.config import TrainConfig
from recurrl.policy import ActorCritic


class SyncCollector(Workers, MultiSyncCollector):
    """Batches ``[N, T]``, each with the weights as they are when it is asked for."""

    def iterator(self) -> Iterator[TensorDictBase]:
        """Goes on for ever."""
        with self._supervised():
            while True:
                # Also before the first batch: a checkpoint may have been loaded since the workers were started.
                self.weights.publish(self._learning)
                for worker in range(self.num_workers):
                    self._go_on(worker)
                rows = dict(self._receive() for _ in range(self.num_workers))
                yield torch.cat([rows[worker] for worker in range(self.num_workers)]).to(self._device)


def make(config: TrainConfig, policy: ActorCritic) -> SyncCollector:
    """The collector.

    Raises:
        RunError: a worker failed.
    """
    return SyncCollector(config, policy, frames_per_batch=config.frames_per_batch, cat_results=0)
