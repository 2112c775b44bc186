"""Workers that collect in parallel and alternate with learning.

Shape legend: N environments, T steps.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.collectors import MultiSyncCollector

from recurrl.collector import collector_state
from recurrl.collector.rollouts import Rollouts
from recurrl.collector.workers import Workers
from recurrl.config.collector import MultiSyncConfig


class SyncCollector(Workers, MultiSyncCollector):
    """Rollouts ``[N, T]``, each collected with the newest weights.

    Args:
        options: as configured.
        rollouts: what to collect.
    """

    def __init__(self, options: MultiSyncConfig, rollouts: Rollouts) -> None:
        super().__init__(options, rollouts, frames_per_batch=rollouts.frames, cat_results=0)

    def iterator(self) -> Iterator[TensorDictBase]:
        """An endless iterator."""
        with self._supervised():
            while True:
                # Also before the first batch: a checkpoint may have been loaded since the workers were started.
                self.weights.publish(self._learning)
                for worker in range(self.num_workers):
                    self._continue(worker)
                rows = dict(self._receive() for _ in range(self.num_workers))
                yield torch.cat([rows[worker] for worker in range(self.num_workers)]).to(self._device)

    def state_dict(self) -> dict[str, Any]:
        """The state of each worker: its unfinished episodes, if its environments expose them, and random numbers.

        Raises:
            RunError: a worker failed.
        """
        return collector_state.of_workers(self._called("saved", [()] * self.num_workers))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores it. Episodes that could not be saved are restarted, and the log says why.

        Raises:
            UnsavableError: the environments are constructed differently from the saved ones.
            RunError: a worker failed.
        """
        if states := collector_state.to_workers(state):
            self._called("restore", [(each,) for each in states])


make = SyncCollector
