"""CartPoles whose episodes cannot be saved. Imported by workers, as ``env.packages`` names it."""

from functools import partial

import gymnasium
import numpy as np
from torchrl.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv

from recurrl.envs import Source


class Handle(gymnasium.Wrapper):
    """A CartPole with a handle; a blind one shows zeros."""

    def __init__(self, blind=False):
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=10).unwrapped)
        self.handle, self.blind = iter([]), blind

    def reset(self, **options):
        observation, info = self.env.reset(**options)
        return np.zeros_like(observation) if self.blind else observation, info

    def step(self, action):
        observation, *rest = self.env.step(action)
        return (np.zeros(4, np.float32), 0.0, False, False, {}) if self.blind else (observation, *rest)


gymnasium.register("recurrl-test/Handle-v0", entry_point=Handle, max_episode_steps=10)


class OfTorchRL(Source):
    """CartPoles of TorchRL, which cuts their episodes."""

    def make(self, num_envs):
        one = partial(GymEnv, "CartPole-v1", categorical_action_encoding=True)
        return TransformedEnv(SerialEnv(num_envs, one), StepCounter(max_steps=9, step_count_key="steps"))
