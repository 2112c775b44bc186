"""Options of collectors and of buffers."""

from dataclasses import dataclass

from recurrl.config.options import SECONDS, STEPS, WORKERS, Condition, Range, option
from recurrl.errors import require


@dataclass
class CollectorConfig:
    """The options of every collector; one with options of its own derives a dataclass."""

    name: str = option(
        "single (this process), multi_sync (workers), multi_async (workers that collect meanwhile) or ray (workers on "
        "the machines of a Ray cluster)"
    )
    timeout_s: float | None = option(
        "seconds after which a step or reset of one process's environments has failed; null: no limit", SECONDS
    )
    on_fault: str = option(
        "when environments or a worker fail: raise ends the run, restart continues with new ones",
        choices=("raise", "restart"),
    )

    @property
    def is_behind(self) -> bool:
        """True if rollouts may be collected with older weights."""
        return False


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

    @property
    def is_behind(self) -> bool:
        """Always."""
        return True


OWN_CLUSTER = Condition("collector.address=null", lambda config: getattr(config.collector, "address", None) is None)


@dataclass
class RayConfig(WorkersConfig):
    """Workers on the machines of a Ray cluster."""

    address: str | None = option(
        "the cluster: auto (the one that this machine belongs to), its host:port, or ray://host:port (Ray Client); "
        "null: one of this machine alone, for the run"
    )
    ahead: int = option(
        "rollouts that workers are ahead of learning, with weights that many updates old; 0: they wait while it learns",
        Range(0, 16, integers=True),
    )
    cpus_per_worker: float = option("CPU cores that Ray reserves for a worker", Range(0, 2**10))
    gpus_per_worker: float = option(
        "GPUs that Ray reserves for a worker; its policy acts there, or on the CPU with 0", Range(0, 2**6)
    )
    start_timeout_s: float | None = option(
        "seconds that workers may wait for room in the cluster and for their environments; null: no limit", SECONDS
    )
    object_store_mb: int = option(
        "shared memory in MiB for weights and rows on their way; what does not fit goes to files",
        Range(80, 10**6, integers=True),
        only_with=OWN_CLUSTER,
    )

    @property
    def is_behind(self) -> bool:
        """If workers are ahead."""
        return self.ahead > 0


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
