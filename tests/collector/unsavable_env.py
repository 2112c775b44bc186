"""Environments whose episodes cannot be saved. Imported by workers, as ``env.packages`` names it."""

from functools import partial

import gymnasium
import numpy as np
from counting_env import Counting
from torchrl.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv

from recurrl.envs import Source


class Handle(Counting):
    """Has a handle, and shows random numbers; a blind one shows zeros."""

    def __init__(self, blind=False):
        self.handle, self.blind = iter([]), blind

    def observation(self):
        return super().observation() if self.blind else self.np_random.random(1, np.float32)


gymnasium.register("recurrl-test/Handle-v0", entry_point=Handle, max_episode_steps=10)


class OfTorchRL(Source):
    """CartPoles of TorchRL, which cuts their episodes."""

    def make(self, num_envs):
        one = partial(GymEnv, "CartPole-v1", categorical_action_encoding=True)
        return TransformedEnv(SerialEnv(num_envs, one), StepCounter(max_steps=9, step_count_key="steps"))
