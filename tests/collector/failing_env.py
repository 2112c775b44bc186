"""An environment that fails when it is told to. Imported by workers, as ``env.packages`` names it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class ArmError(Exception):
    """Known to nobody but this file."""


class Failing(gymnasium.Env):  # type: ignore[type-arg]
    """Fails at a step; step 0 is the reset."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, at: int) -> None:
        self.left = at

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ArmError("the arm is stuck")
        return np.zeros(2, np.float32)


gymnasium.register("recurrl-test/Failing-v0", entry_point=Failing)
