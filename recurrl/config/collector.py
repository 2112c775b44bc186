"""Options of collectors and of buffers."""

from dataclasses import dataclass

from recurrl.config.options import SECONDS, WORKERS, option


@dataclass
class CollectorConfig:
    """The options of every collector; one with options of its own derives a dataclass."""

    name: str = option("single (this process), multi_sync (workers) or multi_async (workers that collect meanwhile)")
    timeout_s: float | None = option(
        "seconds after which a step or reset of one process's environments has failed; null: no limit", SECONDS
    )
    on_fault: str = option(
        "when environments or a worker fail: raise ends the run, restart continues with new ones",
        choices=("raise", "restart"),
    )


@dataclass
class WorkersConfig(CollectorConfig):
    """A collector whose environments are split evenly among worker processes, which reset independently."""

    num_workers: int = option("worker processes that share the environments", WORKERS)


@dataclass
class MultiSyncConfig(WorkersConfig):
    """Workers that alternate with learning."""


@dataclass
class MultiAsyncConfig(WorkersConfig):
    """Workers that collect during learning."""


@dataclass
class BufferConfig:
    """The options of every buffer; one with options of its own derives a dataclass."""

    name: str = option("the buffer")
