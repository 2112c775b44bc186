"""A wrapper that makes the frames of a run large."""

import gymnasium
import numpy as np


class Wide(gymnasium.ObservationWrapper):
    """Repeats the observation until it has ``size`` entries."""

    def __init__(self, env, size):
        super().__init__(env)
        assert isinstance(env.observation_space, gymnasium.spaces.Box)
        low, high = (np.resize(bound, size) for bound in (env.observation_space.low, env.observation_space.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation):
        return np.resize(observation, self.observation_space.shape)
