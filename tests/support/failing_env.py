"""An environment that fails when and as configured. Imported by workers, as ``env.packages`` names it."""

import itertools
import os
import signal
import time
from pathlib import Path

import gymnasium
from counting_env import Counting


class ArmError(Exception):
    """Known to nobody but this file."""


class Failing(Counting):
    """Never ends, and fails at a step, in the configured way; step 0 is the reset.

    With a marker, a file, only the first copy that comes to it fails, and writes the marker.
    """

    length = None

    def __init__(self, at, by="raising", marker=None):
        self.left, self.by, self.marker = at, by, marker

    def observation(self):
        self._observe()
        return super().observation()

    def _observe(self):
        self.left -= 1
        if self.left < 0 and self._is_the_one():
            self._fail()

    def _is_the_one(self):
        if self.marker is None:
            return True
        try:
            Path(self.marker).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _fail(self):
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
FAILING = ("env=gym", "env.id=recurrl-test/Failing-v0", "env.packages=[failing_env]")
"""Overrides that choose it."""
