"""A corridor whose first cell shows which way to turn at its end: an environment with an option of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from recurrl.config import EnvConfig
from recurrl.config.options import Range, option
from recurrl.envs import GymnasiumSource


@dataclass
class CorridorConfig(EnvConfig):
    """The options of every environment, and the corridor's own."""

    length: int = option("steps to the end", Range(1, 1000, integers=True), default=5)


class CorridorEnv(gymnasium.Env[Any, Any]):
    """Shows −1 or 1 at the first step and 0 later; the last action earns 1 if it is that sign (as 0 or 1)."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Draws the sign."""
        super().reset(seed=seed)
        self.sign, self.steps = int(self.np_random.integers(2)), 0
        return np.array([2 * self.sign - 1], np.float32), {}

    def step(self, action: Any) -> Any:
        """Moves on by one cell."""
        self.steps += 1
        at_end = self.steps == self.length
        return np.zeros(1, np.float32), float(at_end and action == self.sign), at_end, False, {}


class Corridor(GymnasiumSource):
    """Makes corridors: ``env=my_package.corridor:Corridor env.length=8``."""

    def __init__(self, options: CorridorConfig) -> None:
        super().__init__(options)
        self.length = options.length

    def create(self) -> CorridorEnv:
        """One corridor."""
        return CorridorEnv(self.length)
