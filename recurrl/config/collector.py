"""Options of collectors and of buffers."""

from dataclasses import dataclass
from typing import ClassVar

from recurrl.config.options import SECONDS, WORKERS, Range, option


@dataclass
class CollectorConfig:
    """The options that all collectors have; a collector with further options derives a dataclass from this one."""

    name: str = option("where environments run: in this process, in workers, or on a Ray cluster")
    timeout_s: float | None = option("seconds after which a step or reset counts as failed; null: no limit", SECONDS)
    on_env_error: str = option("if environments or workers fail: raise, or restart", choices=("raise", "restart"))

    @property
    def collects_ahead(self) -> bool:
        """True if rollouts may be collected during learning, with older weights."""
        return False


@dataclass
class WorkersConfig(CollectorConfig):
    """A collector whose environments are split evenly among worker processes, which reset independently."""

    num_workers: int = option("worker processes that share the environments", WORKERS)
    ahead: int = option(
        "rollouts to collect ahead of learning (weights are as many updates stale); 0: collect and learn in turns",
        Range(0, 16, integers=True),
    )

    @property
    def collects_ahead(self) -> bool:
        """True if workers collect during learning."""
        return self.ahead > 0


@dataclass
class RayConfig(WorkersConfig):
    """Workers on the machines of a Ray cluster."""

    address: str | None = option("auto (this machine's cluster), host:port or ray://host:port; null: a temporary one")
    cpus_per_worker: float = option("CPU cores that Ray reserves for a worker", Range(0, 2**10))
    gpus_per_worker: float = option("GPUs that Ray reserves for a worker, which runs its policy there", Range(0, 2**6))


@dataclass
class BufferConfig:
    """The options that all buffers have; a buffer with further options derives a dataclass from this one."""

    name: str = option("the buffer")
    replays: ClassVar[bool] = False
    """True if frames of earlier iterations are learned from again; checkpoints then hold the buffer."""


@dataclass
class ReplayConfig(BufferConfig):
    """New rows together with rows drawn from earlier rollouts."""

    rollouts: int = option("earlier rollouts to keep, if replay_ratio is above 1", Range(1, 1000, integers=True))
    replay_ratio: int | None = option(
        "rows to learn from per new row, including the new one, where gradients are noise (optim/signal); "
        "null: 4, or 1 with continuous actions, and at least min_replay_ratio",
        Range(2, 1000, integers=True),
    )
    min_replay_ratio: int = option(
        "rows to learn from per new row where gradients are free of noise", Range(1, 1000, integers=True)
    )
    replays = True

    def max_replay_ratio(self, continuous: bool) -> int:
        """``replay_ratio``, or its default for this kind of action."""
        return self.replay_ratio or max(self.min_replay_ratio, 1 if continuous else 4)
