"""The parts of a run that a checkpoint holds."""

from __future__ import annotations

from typing import Any, Protocol

from torchrl.checkpoint import GlobalRNGState

from recurrl.envs import recurrent_modules
from recurrl.learning.learner import Learner
from recurrl.recurrent.auto import Choices


class Stateful(Protocol):
    """A component of a checkpoint."""

    def state_dict(self) -> Any:
        """Tensors and plain values."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Restores them."""


def components(learner: Learner, **others: Stateful) -> dict[str, Stateful]:
    """The whole state of a run: the learner's parts, random numbers, and ``others`` by name."""
    modules = recurrent_modules(learner.policy)
    return {
        "policy": learner.policy,
        "optimizer": learner.optimizer,
        "algorithm": learner.algorithm,
        "reward_scaler": learner.reward_scaler,
        "learner": learner,
        "rng": GlobalRNGState(),
        "backends": Choices([module.chooser for module in modules], learner.policy.device),
        **others,
    }
