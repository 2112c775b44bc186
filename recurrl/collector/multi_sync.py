"""Workers that collect in parallel and alternate with learning.

Shape legend: N environments, T steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.collectors import MultiSyncCollector

from recurrl.collector import collector_state
from recurrl.collector.workers import Workers
from recurrl.config import CollectorConfig, TrainConfig
from recurrl.policy import Policy


class SyncCollector(Workers, MultiSyncCollector):
    """Batches ``[N, T]``, each collected with the weights at the time of its request."""

    def iterator(self) -> Iterator[TensorDictBase]:
        """An endless iterator."""
        with self._supervised():
            while True:
                # Also before the first batch: a checkpoint may have been loaded since the workers were started.
                self.weights.publish(self._learning)
                for worker in range(self.num_workers):
                    self._go_on(worker)
                rows = dict(self._receive() for _ in range(self.num_workers))
                yield torch.cat([rows[worker] for worker in range(self.num_workers)]).to(self._device)

    def state_dict(self) -> dict[str, Any]:
        """The state of each worker: its unfinished episodes, if its environments expose them, and random numbers.

        Raises:
            RunError: a worker failed.
        """
        workers = self._saved()
        return {"why_not": next((state["why_not"] for state in workers if state["why_not"]), None), "workers": workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores it. Episodes that could not be saved are restarted, and the log says why.

        Raises:
            UnsavableError: the environments are constructed differently from the saved ones.
            RunError: a worker failed.
        """
        collector_state.warn_if_lost(state)
        # The state of a failed collector lacks them.
        if "workers" in state:
            self._restore(state["workers"])


def make(options: CollectorConfig, config: TrainConfig, policy: Policy) -> SyncCollector:
    """The collector.

    Raises:
        RunError: a worker failed.
    """
    return SyncCollector(config, policy, frames_per_batch=config.frames_per_batch, cat_results=0)
