"""Workers that collect side by side, while learning waits, and learning, while they wait.

Shape legend: N environments, T steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensordict import TensorDictBase
from torchrl.collectors import MultiSyncCollector

from recurrl.collector.workers import Workers
from recurrl.config import TrainConfig
from recurrl.policy import ActorCritic


class SyncCollector(Workers, MultiSyncCollector):
    """Batches ``[N, T]``, each with the weights as they are when it is asked for."""

    def iterator(self) -> Iterator[TensorDictBase]:
        """Goes on for ever."""
        with self._failing_as_the_worker():
            # A checkpoint may have been loaded since the workers were started.
            self.weights.publish(self._learning)
            for batch in super().iterator():
                yield batch.to(self._device)
                self.weights.publish(self._learning)


def make(config: TrainConfig, policy: ActorCritic) -> SyncCollector:
    """The collector.

    Raises:
        Exception: whatever a worker's environment or policy raised.
    """
    return SyncCollector(config, policy, frames_per_batch=config.frames_per_batch, cat_results=0)
