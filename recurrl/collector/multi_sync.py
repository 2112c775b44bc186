"""Worker processes that collect with the newest weights, alternating with learning."""

from recurrl.collector.collector import RolloutSpec
from recurrl.collector.processes import ProcessHost
from recurrl.collector.workers import WorkerCollector
from recurrl.config import WorkersConfig


def make(options: WorkersConfig, spec: RolloutSpec) -> WorkerCollector:
    """The collector of worker processes."""
    return WorkerCollector(options, spec, ProcessHost(options, spec.policy))
