"""An environment for the test of every key: several kinds of observation and action, and failures on request."""

from copy import deepcopy

import gymnasium
import numpy as np
import torch
from counting_env import Counting
from gymnasium import spaces

IMAGE, VECTOR = spaces.Box(0, 255, (36, 36, 1), np.uint8), spaces.Box(-2.0, 2.0, (4,))
KINDS = {
    "index": (spaces.Discrete(5), spaces.Box(-1.0, 1.0, (2,))),
    "dict": (
        spaces.Dict({"image": IMAGE, "vector": VECTOR, "bits": spaces.MultiBinary(3)}),
        spaces.Dict({"gate": spaces.Discrete(2), "force": spaces.Box(-1.0, 1.0, (1,))}),
    ),
}
"""What environments see and do."""


class Kind(Counting):
    """Random observations; episodes of different lengths, and in some of them no reward at all.

    Args:
        kind: of observations and actions, of :data:`KINDS`.
        length: of the longest episodes.
        fails: raises at the third step of an episode, in two of a run's environments: not in those that checks make
            before and after them.

    Attributes:
        made: environments so far.
    """

    made = 0

    def __init__(self, kind="dict", length=6, fails=False):
        self.observation_space, self.action_space = deepcopy(KINDS[kind])
        Kind.made += 1
        self.longest, self.fails = length, fails and Kind.made in (4, 5)

    def observation(self):
        if self.steps == 0:
            self.observation_space.seed(int(self.np_random.integers(2**31)))
            self.length = int(self.np_random.integers(3, self.longest + 1))
            self.scale = float(self.np_random.integers(2))
        if self.steps == 3 and self.fails:
            raise RuntimeError("the simulator crashed")
        return self.observation_space.sample()

    def reward(self, action):
        flat = spaces.flatten(self.action_space, action)
        return self.scale * float(np.tanh(flat) @ np.arange(1, 1 + flat.size))


def teacher(seen):
    """The same action for whatever is seen: of a memory task, and of each of :data:`KINDS`."""
    observed, one = seen["observation"], torch.ones
    if "privileged" in seen:
        return one(len(observed), dtype=torch.long)
    if isinstance(observed, torch.Tensor):
        return one(len(observed), 2)
    count = len(observed["vector"])
    return {"gate": one(count, dtype=torch.long), "force": one(count, 1)}


gymnasium.register("Kind-v0", Kind, max_episode_steps=8)
