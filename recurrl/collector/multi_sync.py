"""Worker processes that collect with the newest weights, in turns with learning."""

from functools import partial

from recurrl.collector.processes import Processes
from recurrl.collector.rollout import Rollouts
from recurrl.collector.workers import WorkerCollector
from recurrl.config import WorkersConfig


def make(options: WorkersConfig, rollouts: Rollouts, ahead: int = 0) -> WorkerCollector:
    """The collector.

    Args:
        options: as configured.
        rollouts: what to collect.
        ahead: rollouts that workers collect ahead of learning.
    """
    return WorkerCollector(options, rollouts, partial(Processes, options, rollouts.policy, ahead + 1), ahead)
