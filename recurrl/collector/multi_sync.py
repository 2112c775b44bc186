"""Worker processes that collect with the newest weights, in turns with learning."""

from functools import partial

from recurrl.collector.processes import Processes
from recurrl.collector.rollout import Rollouts
from recurrl.collector.workers import WorkerCollector
from recurrl.config import WorkersConfig


def make(options: WorkersConfig, rollouts: Rollouts) -> WorkerCollector:
    """The collector of worker processes.

    Args:
        options: as configured.
        rollouts: what to collect.
    """
    host = partial(Processes, options, rollouts.policy, options.ahead + 1)
    return WorkerCollector(options, rollouts, host, options.ahead)
