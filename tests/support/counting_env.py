"""A small environment to derive others from."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env):
    """Counts the steps of its episodes, which have ``length``; shows zeros and pays nothing."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
    length = 8

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(), self.info()

    def step(self, action):
        self.steps += 1
        return self.observation(), self.reward(action), *self.ended(), self.info()

    def observation(self):
        return np.zeros(self.observation_space.shape, np.float32)

    def reward(self, action):
        return 0.0

    def ended(self):
        """Whether it is terminated, and whether it is truncated."""
        return self.steps == self.length, False

    def info(self):
        return {}


class OneBit(Counting):
    """Shows one of two sides at the first step, and nothing after it; each later step pays for naming it."""

    length = 5

    def observation(self):
        if self.steps > 0:
            return super().observation()
        self.side = int(self.np_random.integers(2))
        return np.array([2 * self.side - 1], np.float32)

    def reward(self, action):
        return float(self.steps > 1 and int(action) == self.side)
