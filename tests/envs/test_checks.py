"""Errors of misbehaving environments name the environment and its step; ``test_hostile.py`` has whole runs."""

import numpy as np
import pytest
from rejections import error_of

from recurrl.envs import make_env
from recurrl.envs.checks import EnvChecks
from recurrl.errors import EnvError

STEP, RESET = "3 of 4 (Hostile-v0), at step 3, ", "3 of 4 (Hostile-v0), at step 2, "
MESSAGES = {
    "call RuntimeError": f"{STEP}raised RuntimeError in step: stuck.",
    "reward inf": f"{STEP}returned a non-finite reward: inf.",
    "observation nan": f"{STEP}returned a non-finite value of observation 'observation': [nan nan nan].",
    "observation shape": f"{STEP}gave the observation 'observation' the shape (3, 2) and the dtype float32, but its "
    "space has (3,) and float32.",
    "observation text": f"{STEP}gave the observation 'observation' the shape (3,) and the dtype <U1, but its space has",
    "call KeyError": f"{RESET}raised KeyError in reset: 1.",
    "call StopIteration": f"{STEP}raised StopIteration in step: no more.",
}


@pytest.mark.parametrize("failure", MESSAGES)
def test_an_error_names_the_environment_and_its_step(failure, compose):
    place = "reset" if RESET in MESSAGES[failure] else "step"
    config = compose("env=gym", "env.packages=[hostile]", "env.id=Hostile-v0").env
    config.kwargs = {"observation": "vector", "action": "discrete", "failure": failure, "place": place}
    env = make_env(config, 4, seed=0)
    env.base_env.raw.envs.reverse()  # the one that misbehaves is the last
    assert MESSAGES[failure] in error_of(env.rollout, 4, break_when_any_done=False, kind=EnvError)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_near_the_limit_of_their_dtype_are_finite(dtype):
    checks = EnvChecks("Large-v0", 2)
    checks.check_finite("reward", np.full((2, 1), min(np.finfo(dtype).max, np.finfo(np.float32).max), dtype))
    for no_number in (np.nan, np.inf):
        with pytest.raises(EnvError, match="returned a non-finite reward"):
            checks.check_finite("reward", np.array([0.0, no_number], dtype))
