"""The rollouts that a collector delivers, and its interface to the training loop."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tensordict import TensorDictBase

from recurrl.config import EnvConfig
from recurrl.policy import Policy


@dataclass(frozen=True)
class Rollouts:
    """The rollouts that a collector delivers.

    Attributes:
        env: the environments.
        policy: it acts, on its device, where the rollouts are stored too.
        frames: frames per rollout, summed over environments.
        seed: of environments and workers.
        group_size: environments that start each row from the same state; each row then begins with a reset. None:
            episodes continue from one rollout to the next.
    """

    env: EnvConfig
    policy: Policy
    frames: int
    seed: int
    group_size: int | None = None


class RolloutCollector(Protocol):
    """The interface of a collector to the training loop. TorchRL's collectors have most of it."""

    def __iter__(self) -> Iterator[TensorDictBase]:
        """An endless iterator over rollouts ``[N, T]``."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the last rollout's collection."""

    def state_dict(self) -> dict[str, Any]:
        """The unfinished episodes, as in :mod:`recurrl.collector.collector_state`."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Restores them, in another process. Those that could not be saved are restarted.

        Raises:
            UnsavableError: the environments are constructed differently from the saved ones.
        """

    def shutdown(self, *, raise_on_error: bool = True) -> None:
        """Closes environments and ends processes."""


@runtime_checkable
class ReplacesWorkers(RolloutCollector, Protocol):
    """A collector that can continue after a fault without replacing all of its workers."""

    def replace_failed(self, restarts: int) -> None:
        """Replaces the workers that failed, with unused seeds; the next iterator completes the unfinished batch.

        Args:
            restarts: of the run so far.

        Raises:
            RunError: a new worker failed.
        """
