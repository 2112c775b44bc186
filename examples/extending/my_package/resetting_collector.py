"""A collector: every few rollouts begin with a reset of all environments, with an option, a metric and a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase

from recurrl.collector.collector import RolloutSpec
from recurrl.collector.single import SingleCollector
from recurrl.config import CollectorConfig
from recurrl.config.options import STEPS, option
from recurrl.keys import IS_INIT


@dataclass
class ResettingConfig(CollectorConfig):
    """A collector's options, and one more."""

    reset_every: int = option("rollouts between two resets of all environments", STEPS, default=2)


class ResettingCollector(SingleCollector):
    """The rollout in this process, with these resets."""

    def __init__(self, options: ResettingConfig, spec: RolloutSpec) -> None:
        super().__init__(spec)
        self.reset_every, self.collected = options.reset_every, 0

    def collect(self) -> TensorDictBase:
        """The next rollout ``[N, T]``."""
        if self.collected % self.reset_every == 0:
            self.begin_episodes()
        self.collected += 1
        rollout = super().collect()
        self.begins_with_reset = bool(rollout[IS_INIT][:, 0].all())
        return rollout

    def metrics(self) -> dict[str, float]:
        """1 if all rows of the last rollout begin with a reset."""
        return {**super().metrics(), "collect/reset": float(self.begins_with_reset)}

    def state_dict(self) -> dict[str, Any]:
        """The unfinished episodes, and the number of rollouts collected."""
        return {**super().state_dict(), "collected": self.collected}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores them."""
        super().load_state_dict(state)
        self.collected = state["collected"]


make = ResettingCollector
