"""Errors of misbehaving environments name the environment and its step; ``test_hostile.py`` has whole runs."""

from itertools import count

import gymnasium
import numpy as np
import pytest

from recurrl.envs import make_env
from recurrl.envs.checks import EnvChecks
from recurrl.errors import EnvError


class Failing(gymnasium.Env):
    """The second copy misbehaves at its third step, or each one at a reset."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, failure, index):
        self.failure, self.index, self.steps = failure, index, 0

    def reset(self, *, seed=None, options=None):
        if self.failure == "first reset" or (self.failure == "reset" and self.steps):
            raise KeyError("no map")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        observation, reward = np.zeros(2, np.float32), 0.0
        if self.steps == 3 and self.index == 1:
            if self.failure == "raises":
                raise RuntimeError("the simulator crashed")
            reward = float("inf") if self.failure == "reward" else 0.0
            replaced = {"observation": [0.0, np.nan], "shape": [0.0], "dtype": ["a", "b"]}
            observation = np.array(replaced.get(self.failure, observation))
        return observation, reward, self.failure == "reset", False, {}


MESSAGES = {
    "raises": "1 of 4 (Registered-v0), at step 3, raised RuntimeError in step: the simulator crashed.",
    "reward": "1 of 4 (Registered-v0), at step 3, returned a non-finite reward: inf.",
    "observation": "1 of 4 (Registered-v0), at step 3, returned a non-finite value of observation 'observation': [ 0.",
    "shape": "gave the observation 'observation' the shape (1,) and the dtype float64, but its space has (2,) and",
    "dtype": "gave the observation 'observation' the shape (2,) and the dtype <U1, but its space has (2,) and float32.",
    "reset": "0 of 4 (Registered-v0), at step 1, raised KeyError in reset: 'no map'.",
    "first reset": "0 of 4 (Registered-v0), at step 0, raised KeyError in reset: 'no map'.",
}


@pytest.mark.parametrize("failure", MESSAGES)
def test_an_error_names_the_environment_and_its_step(failure, compose, register):
    copies = count()
    env_id = register(lambda failure: Failing(failure, next(copies)))
    config = compose("env=gym", f"env.id={env_id}", f"+env.kwargs.failure={failure}").env
    with pytest.raises(EnvError) as caught:
        make_env(config, 4, seed=0).rollout(4, break_when_any_done=False)
    assert MESSAGES[failure] in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_near_the_limit_of_their_dtype_are_finite(dtype):
    checks = EnvChecks("Large-v0", 2)
    checks.check_finite("reward", np.full((2, 1), min(np.finfo(dtype).max, np.finfo(np.float32).max), dtype))
    for no_number in (np.nan, np.inf):
        with pytest.raises(EnvError, match="returned a non-finite reward"):
            checks.check_finite("reward", np.array([0.0, no_number], dtype))
