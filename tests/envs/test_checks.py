"""Misbehaving environments: the error of the run, and its summary."""

import json
from typing import Any

import gymnasium
import numpy as np
import pytest

from recurrl.envs.checks import EnvChecks
from recurrl.errors import EnvError

FAULTS = ("raises", "reward", "observation", "shape", "dtype", "reset", "first reset")


class Faulty(gymnasium.Env[Any, Any]):
    """The second environment of a run misbehaves at its third step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, fault):
        self.index = Faulty.made
        Faulty.made += 1
        self.fault, self.steps = fault, 0

    def reset(self, *, seed=None, options=None):
        if self.fault == "first reset" or (self.fault == "reset" and self.steps):
            raise KeyError("no map")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        observation = np.zeros(2, np.float32)
        reward = 0.0
        if self.steps == 3 and self.index % 2 == 0:
            if self.fault == "raises":
                raise RuntimeError("the simulator crashed")
            reward = float("inf") if self.fault == "reward" else 0.0
            replaced = {"observation": [0.0, np.nan], "shape": [0.0], "dtype": ["a", "b"]}
            observation = np.array(replaced.get(self.fault, observation))
        return observation, reward, self.fault == "reset", False, {}


@pytest.fixture
def faulty(monkeypatch):
    monkeypatch.setitem(
        gymnasium.registry, "Faulty-v0", gymnasium.envs.registration.EnvSpec("Faulty-v0", entry_point=Faulty)
    )
    # One copy is made for the specs, so that environment 1 of the run is the one with an even index.
    monkeypatch.setattr(Faulty, "made", 0)


MESSAGES = {
    "raises": "raised RuntimeError in step: the simulator crashed.",
    "reward": "returned a non-finite reward: inf.",
    "observation": "returned a non-finite value of observation 'observation': [ 0. nan].",
    "shape": "gave the observation 'observation' the shape (1,) and the dtype float64, but its space has (2,) and",
    "dtype": "gave the observation 'observation' the shape (2,) and the dtype <U1, but its space has (2,) and float32.",
    "reset": "raised KeyError in reset: 'no map'.",
    "first reset": "raised KeyError in reset: 'no map'.",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_the_run_with_an_error_that_names_the_environment_and_its_step(
    recurrl_train, tiny, tmp_path, faulty, fault
):
    outcome = recurrl_train(
        *tiny, "env=gym", "env.id=Faulty-v0", f"+env.kwargs.fault={fault}", "hydra.run.dir=run", cwd=tmp_path
    ).failed()
    place = {"reset": "0 of 4 (Faulty-v0), at step 1", "first reset": "0 of 1 (Faulty-v0), at step 0"}
    assert f"Environment {place.get(fault, '1 of 4 (Faulty-v0), at step 3')}, {MESSAGES[fault]}" in outcome.error
    assert "Traceback" not in outcome.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert MESSAGES[fault] in summary["error"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_near_the_limit_of_their_dtype_are_finite(dtype):
    faults = EnvChecks("Large-v0", 2)
    faults.check_finite("reward", np.full((2, 1), min(np.finfo(dtype).max, np.finfo(np.float32).max), dtype))
    for no_number in (np.nan, np.inf):
        with pytest.raises(EnvError, match="returned a non-finite reward"):
            faults.check_finite("reward", np.array([0.0, no_number], dtype))
