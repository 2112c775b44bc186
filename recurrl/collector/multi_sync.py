"""Workers that collect side by side, while learning waits, and learning, while they wait.

Shape legend: N environments, T steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.collectors import MultiSyncCollector

from recurrl.collector import carry
from recurrl.collector.workers import Workers
from recurrl.config import TrainConfig
from recurrl.policy import Policy


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

    def state_dict(self) -> dict[str, Any]:
        """What each worker holds: its episodes under way, as far as its environments can give them, and random numbers.

        Raises:
            RunError: a worker failed.
        """
        workers = self._saved()
        return {"why_not": next((state["why_not"] for state in workers if state["why_not"]), None), "workers": workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there. Episodes that could not be given begin anew, and the log says why.

        Raises:
            UnsavableError: the environments are not made as those that were saved.
            RunError: a worker failed.
        """
        carry.warn_if_lost(state)
        # Those of a collector that had failed have none.
        if "workers" in state:
            self._restore(state["workers"])


def make(config: TrainConfig, policy: Policy) -> SyncCollector:
    """The collector.

    Raises:
        RunError: a worker failed.
    """
    return SyncCollector(config, policy, frames_per_batch=config.frames_per_batch, cat_results=0)
