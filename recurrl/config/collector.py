"""Options of collectors and of buffers."""

from __future__ import annotations

from dataclasses import dataclass

from recurrl.config.options import SECONDS, WORKERS, option


@dataclass
class CollectorConfig:
    """The processes that step the environments; a collector with options of its own derives a dataclass."""

    name: str = option("single (this process), multi_sync (workers) or multi_async (workers that collect meanwhile)")
    num_workers: int = option("worker processes that share the environments; 1 for collector=single", WORKERS)
    timeout_s: float | None = option(
        "seconds after which a step or reset of one process's environments has failed; null: no limit", SECONDS
    )
    on_fault: str = option(
        "when environments or a worker fail: raise ends the run, restart continues with new ones",
        choices=("raise", "restart"),
    )


@dataclass
class BufferConfig:
    """What learning draws its minibatches from; a buffer with options of its own derives a dataclass."""

    name: str = option("the buffer")
