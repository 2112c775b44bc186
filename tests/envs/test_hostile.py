"""Hostile environments: a run ends with an error that names the environment and its step, or restarts as configured."""

import re

import numpy as np
import pytest
from hostile import ACTIONS, OBSERVATIONS, Hostile, cases, failures_of
from run_files import summary

FAST = ("backend=reference", "epochs=1", "consistency_check=false", "total_frames=32", "logger=csv")


def assert_ends_as_it_must(case, recurrl_train, tiny, folder):
    # Images have no use for the widths of dense layers.
    small = [key for key in tiny if not (case.observation == "image" and key.startswith("encoder."))]
    outcome = recurrl_train(
        *small,
        *FAST,
        *("env=gym", "env.packages=[hostile]", "env.id=Hostile-v0", "hydra.run.dir=run", "collector.timeout_s=2"),
        *(f"+env.kwargs.{key}='{getattr(case, key)}'" for key in ("observation", "action", "failure", "place")),
        f"collector.on_env_error={case.on_env_error}",
        cwd=folder,
    )
    assert "Traceback" not in outcome.err, outcome.err
    found = summary(folder / "run")
    if case.on_env_error == "restart":
        assert outcome.code == 0, outcome.err
        assert found["restarts"] == 1
        return
    assert outcome.code == 1
    count, step = {"step": (4, 3), "reset": (4, 2), "evaluation": (2, 3)}[case.place]
    assert re.search(rf"Environment 0 of {count} \(Hostile-v0\), at step {step}, ", outcome.error), outcome.error
    assert found["status"] == "failed"


QUICK = cases(27, seed=1)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{i} {' '.join(case)}", marks=[pytest.mark.slow] * (i >= len(QUICK)))
        for i, case in enumerate(QUICK + cases(300))
    ],
)
def test_a_run_ends_with_the_environments_name_and_step_or_restarts_as_configured(case, recurrl_train, tiny, tmp_path):
    assert_ends_as_it_must(case, recurrl_train, tiny, tmp_path)


def test_the_cases_have_every_kind_place_and_failure():
    found = cases(300)
    assert {case.observation for case in found} == set(OBSERVATIONS)
    assert {case.action for case in found} == set(ACTIONS)
    every = {failure for kind in OBSERVATIONS for failure in failures_of(kind, "step")}
    assert len({case.failure for case in found}) > 0.9 * len(every)


def _accepted():
    flags = {"int": 0, "numpy": np.bool_(False), "array": np.array([False]), "0-d": np.array(0)}
    return {"flag": flags, "reward": {"int": 1, "0-d": np.array(1.0), "array": np.ones(1), "half": np.float16(1)}}


@pytest.mark.parametrize(
    ("what", "name"), [(what, name) for what, values in _accepted().items() for name in values], ids=str
)
@pytest.mark.parametrize("previous", ["true", "false"])
def test_values_with_only_one_meaning_are_accepted(what, name, previous, recurrl_train, tiny, tmp_path, register):
    class Unusual(Hostile):
        def step(self, action):
            observation, reward, over, cut, info = super().step(action)
            returned = {"reward": reward, "flag": cut} | {what: _accepted()[what][name]}
            return observation, returned["reward"], over, returned["flag"], info

    env_id = register(lambda: Unusual("vector", "bounded", "call hang", "nowhere"))
    recurrl_train(
        *tiny, *FAST, "env=gym", f"env.id={env_id}", f"env.previous_reward={previous}", cwd=tmp_path
    ).succeeded()
