"""The interface of an algorithm to the learner."""

from __future__ import annotations

from typing import Any, Protocol

from tensordict import TensorDictBase
from torch import Tensor


class Algorithm(Protocol):
    """The interface of an algorithm to the learner.

    Attributes:
        loss: a module over the policy's own parameters; called with a minibatch, it returns :class:`Losses`.
        keys: the entries of a batch that the loss reads.
    """

    loss: Any
    keys: list[Any]

    def begin_iteration(self, progress: float) -> None:
        """Sets what is on a schedule, at a fraction of the run's frames, while the policy is the one that collected."""

    def prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes what the loss needs into rows ``[N, T]``, and returns what to log of it."""

    def end_iteration(self, kl: float) -> None:
        """Takes note that an iteration's steps were made, with this approximate KL in their last epoch."""

    def state_dict(self) -> dict[str, Any]:
        """The learnt state other than the policy's."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
