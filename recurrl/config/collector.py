"""Options of collectors and of buffers."""

from dataclasses import dataclass

from recurrl.config.options import SECONDS, STEPS, WORKERS, Range, option
from recurrl.errors import require


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

    @property
    def replays(self) -> bool:
        """True if frames of earlier iterations are learnt from again."""
        return False

    def check(self, frames_per_batch: int) -> None:
        """Rejects options that do not fit the frames of an iteration.

        Raises:
            ConfigError: with what to do.
        """


@dataclass
class ReplayConfig(BufferConfig):
    """New rows together with rows drawn from earlier iterations."""

    frames: int = option("frames that are kept, the newest; at least frames_per_batch", STEPS)
    replay_ratio: int = option(
        "rows learnt from for each new row: itself, and the others drawn from earlier iterations",
        Range(2, 1000, integers=True),
    )
    folder: str | None = option(
        "keep the frames in files in this folder, which takes more than fits into memory; null: in memory"
    )

    @property
    def replays(self) -> bool:
        """Always."""
        return True

    def check(self, frames_per_batch: int) -> None:
        """Rejects a buffer that does not hold an iteration."""
        require(
            self.frames >= frames_per_batch,
            f"buffer.frames={self.frames} is less than an iteration of frames_per_batch={frames_per_batch}. Give "
            f"buffer.frames={16 * frames_per_batch}, for example.",
        )
