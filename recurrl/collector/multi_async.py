"""Worker processes that collect ahead of learning, by default one rollout: ``multi_sync`` with ``ahead: 1``."""

from recurrl.collector.multi_sync import make

__all__ = ["make"]
