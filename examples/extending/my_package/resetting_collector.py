"""A collector: every few rollouts begin with a reset of all environments, with an option, a metric and a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase

from recurrl.collector import single
from recurrl.collector.lean import LeanCollector
from recurrl.collector.rollouts import RolloutCollector, Rollouts
from recurrl.config import CollectorConfig
from recurrl.config.options import STEPS, option


@dataclass
class ResettingConfig(CollectorConfig):
    """A collector's options, and one more."""

    reset_every: int = option("rollouts between two resets of all environments", STEPS, default=2)


class ResettingCollector(LeanCollector):
    """The package's collector of one process, with these resets."""

    def __init__(self, *arguments: Any, reset_every: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.reset_every, self.rollouts = reset_every, 0

    def rollout(self) -> TensorDictBase:
        """A rollout of rows ``[N, T]``."""
        self.reset_at_each_iter = self.rollouts % self.reset_every == 0
        self.rollouts += 1
        return super().rollout()

    def metrics(self) -> dict[str, float]:
        """1 if the last rollout began with a reset."""
        return {"collect/reset": float(self.reset_at_each_iter)}

    def state_dict(self) -> dict[str, Any]:
        """The unfinished episodes, and the number of rollouts."""
        return {**super().state_dict(), "rollouts": self.rollouts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores them."""
        super().load_state_dict(state)
        self.rollouts = state["rollouts"]


def make(options: ResettingConfig, rollouts: Rollouts) -> RolloutCollector:
    """The collector."""
    return single.make(options, rollouts, ResettingCollector, reset_every=options.reset_every)
