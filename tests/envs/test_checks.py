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
    how = {"observation": "vector", "action": "discrete", "failure": failure, "place": place}
    env = make_env(compose("env=gym", "env.packages=[hostile]", "env.id=Hostile-v0", **how).env, 4, seed=0)
    env.base_env.raw.envs.reverse()  # the one that misbehaves is the last
    assert MESSAGES[failure] in error_of(env.rollout, 4, break_when_any_done=False, kind=EnvError)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_near_the_limit_of_their_dtype_are_finite(dtype):
    checks = EnvChecks("Large-v0", 2)
    checks.check_finite("reward", np.full((2, 1), min(np.finfo(dtype).max, np.finfo(np.float32).max), dtype))
    for no_number in (np.nan, np.inf):
        with pytest.raises(EnvError, match="returned a non-finite reward"):
            checks.check_finite("reward", np.array([0.0, no_number], dtype))


@pytest.mark.parametrize("one", [1, np.float64(1), np.float16(1), np.array(1.0), np.ones(1)], ids=repr)
def test_a_reward_is_a_number_or_an_array_of_one(one):
    results = EnvChecks("Some-v0", 2).results([one, 2.5], [False, False], [False, False])
    assert results["reward"].tolist() == [[1.0], [2.5]]


@pytest.mark.parametrize("one", [1, True, np.bool_(True), np.array([True]), np.array(1)], ids=repr)
def test_a_flag_is_true_or_one_or_an_array_of_one(one):
    results = EnvChecks("Some-v0", 2).results([0.0, 0.0], [one, False], [0, one])
    flags = {name: results[name].tolist() for name in ("terminated", "truncated", "done")}
    assert flags == {"terminated": [[True], [False]], "truncated": [[False], [True]], "done": [[True], [True]]}
