"""An environment that fails when and as it is told to. Imported by workers, as ``env.packages`` names it."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class ArmError(Exception):
    """Known to nobody but this file."""


class Failing(gymnasium.Env):  # type: ignore[type-arg]
    """Fails at a step, in the way that is asked for; step 0 is the reset.

    Given a marker, a file, only the first copy that comes to it fails, and writes the marker.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, at: int, by: str = "raising", marker: str | None = None) -> None:
        self.left, self.by, self.marker = at, by, marker

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> Any:
        self.left -= 1
        if self.left < 0 and self._is_the_one():
            self._fail()
        return np.zeros(2, np.float32)

    def _is_the_one(self) -> bool:
        if self.marker is None:
            return True
        try:
            Path(self.marker).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _fail(self) -> None:
        if self.by == "raising":
            raise ArmError("the arm is stuck")
        if self.by == "being killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.by == "hanging":
            while True:
                time.sleep(0.01)
        if self.by == "hanging in native code":
            sum(itertools.repeat(0))


gymnasium.register("recurrl-test/Failing-v0", entry_point=Failing)
