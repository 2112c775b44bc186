"""An environment for the test of every key: any kind of observation and of action, and failures on request."""

from copy import deepcopy

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

BOX = spaces.Box(-2.0, 2.0, (4,))
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
OBSERVATIONS = {
    "vector": BOX,
    "image": IMAGE,
    "index": spaces.Discrete(5),
    "dict": spaces.Dict({"image": IMAGE, "vector": BOX, "bits": spaces.MultiBinary(3)}),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "several": spaces.MultiDiscrete([2, 3]),
    "bounded": spaces.Box(-1.0, 1.0, (2,)),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
    "dict": spaces.Dict({"gate": spaces.Discrete(2), "force": spaces.Box(-1.0, 1.0, (1,))}),
}


class Kind(gymnasium.Env):
    """Random observations; episodes of different lengths, and in some of them no reward at all.

    Args:
        sees: the kind of observation.
        does: the kind of action.
        length: of the longest episodes.
        fails: raises at the third step of an episode, in two of a run's environments: not in those that checks make
            before and after them.

    Attributes:
        made: environments so far.
    """

    made = 0

    def __init__(self, sees="vector", does="discrete", length=6, fails=False):
        self.observation_space, self.action_space = deepcopy(OBSERVATIONS[sees]), ACTIONS[does]
        Kind.made += 1
        self.length, self.does, self.fails = length, does, fails and Kind.made in (4, 5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.left = int(self.np_random.integers(3, self.length + 1))
        self.reward = float(self.np_random.integers(2))
        self.steps = 0
        return self.observation_space.sample(), self._info()

    def step(self, action):
        self.steps += 1
        if self.steps == 3 and self.fails:
            raise RuntimeError("the simulator crashed")
        flat = spaces.flatten(self.action_space, action)
        reward = self.reward * float(np.tanh(flat) @ np.arange(1, 1 + flat.size))
        return self.observation_space.sample(), reward, self.steps >= self.left, False, self._info()

    def _info(self):
        masks = {"discrete": [1, 1, 0], "several": [1, 1, 1, 0, 1]}
        return {"action_mask": np.array(masks[self.does], np.int8)} if self.does in masks else {}


class Doubled(gymnasium.RewardWrapper):
    """Twice the reward."""

    def reward(self, reward):
        return 2 * reward


def teacher(seen):
    """The same action for whatever is seen: of a memory task, and of what sees and does ``dict``, or ``index``."""
    observed, one = seen["observation"], torch.ones
    if "hidden" in seen:
        return one(len(observed), dtype=torch.long)
    if isinstance(observed, torch.Tensor):
        return one(len(observed), 2)
    count = len(observed["vector"])
    return {"gate": one(count, dtype=torch.long), "force": one(count, 1)}


gymnasium.register("Kind-v0", Kind, max_episode_steps=8)
