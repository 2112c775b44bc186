"""Recurrent policies trained with PPO, end to end."""

import time
from typing import Any

STARTED = time.time()
"""When this process began to import the package: the beginning of its first run."""

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Public names that need torch, which is imported at their first use."""
    if name == "make_replay_buffer":
        from recurrl.learning.buffers.replay import ReplayRing

        return ReplayRing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
