"""Worker processes that collect one rollout ahead, while learning learns from the one before."""

from recurrl.collector import multi_sync
from recurrl.collector.rollout import Rollouts
from recurrl.collector.workers import WorkerCollector
from recurrl.config.collector import MultiAsyncConfig


def make(options: MultiAsyncConfig, rollouts: Rollouts) -> WorkerCollector:
    """The collector."""
    return multi_sync.make(options, rollouts, ahead=1)
