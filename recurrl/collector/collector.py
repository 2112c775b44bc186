"""The interface of collectors, and what they collect.

Shape legend: N environments, T steps of a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tensordict import TensorDictBase

from recurrl.config import EnvConfig
from recurrl.policy import Policy

STALENESS = "collect/staleness"
"""Metric: mean number of updates since the weights that collected the rollout."""
FAILED = "their environments had failed"
"""Why the episodes of a rollout that ended with an error cannot be saved."""


@dataclass(frozen=True)
class RolloutSpec:
    """What a collector collects.

    Attributes:
        env: options of the environments.
        policy: the policy to act with. Rollouts are stored on its device.
        frames: frames per rollout, summed over environments.
        seed: the seed of environments and workers.
        group_size: the number of environments that start each row from the same state; each row then begins with a
            reset. None if episodes continue from one rollout to the next.
        cuda_graph: replay the policy's steps as a CUDA graph.
    """

    env: EnvConfig
    policy: Policy
    frames: int
    seed: int
    group_size: int | None = None
    cuda_graph: bool = False


class Collector(Protocol):
    """Collects rollouts. Each of the package's choices is a module with a factory ``make(options, spec)``."""

    def collect(self) -> TensorDictBase:
        """The next rollout ``[N, T]``.

        Raises:
            RunError: environments or workers failed.
        """

    def metrics(self) -> dict[str, float]:
        """Metrics of the last rollout's collection."""

    def state_dict(self) -> dict[str, Any]:
        """The unfinished episodes; ``unsavable_reason`` is the reason if they cannot be saved, else None."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Restores unfinished episodes in another process. Those that could not be saved are restarted.

        Raises:
            UnsavableError: the environments are constructed differently from the saved ones.
        """

    def shutdown(self, *, raise_on_error: bool = True) -> None:
        """Closes environments and ends processes."""


class RestartableCollector(Collector, Protocol):
    """A collector whose environments and workers can be replaced."""

    def restart(self, seed: int) -> None:
        """Replaces failed environments and workers with new ones, which begin new episodes.

        Args:
            seed: the new environments' seed.

        Raises:
            RunError: the new ones failed too.
        """
