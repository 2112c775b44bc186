"""All environments in this process."""

from recurrl.collector.rollout import Rollout, Rollouts
from recurrl.config import CollectorConfig


def make(options: CollectorConfig, rollouts: Rollouts) -> Rollout:
    """The rollout itself; it has no options."""
    return Rollout(rollouts)
