"""Hostile environments: a run ends with an error that names the environment and its step, or restarts as configured."""

import re

import pytest
from hostile import ACTIONS, OBSERVATIONS, cases, failures_of
from run_files import summary
from slow_cases import slow

FAST = ("backend=reference", "epochs=1", "consistency_check=false", "total_frames=32", "logger=csv")
TASK = ("env=gym", "env.packages=[hostile]", "env.id=Hostile-v0", "hydra.run.dir=run", "collector.timeout_s=2")


@pytest.mark.parametrize("case", [*cases(27, seed=1), *map(slow, cases(300))], ids=" ".join)
def test_a_run_ends_with_the_environments_name_and_step_or_restarts_as_configured(case, train, tiny, tmp_path):
    # Images have no use for the widths of dense layers.
    small = [key for key in tiny if not (case.observation == "image" and key.startswith("encoder."))]
    kwargs = [f"+env.kwargs.{key}='{getattr(case, key)}'" for key in ("observation", "action", "failure", "place")]
    outcome = train(*small, *FAST, *TASK, *kwargs, f"collector.on_env_error={case.on_env_error}")
    assert "Traceback" not in outcome.err, outcome.err
    found = summary(tmp_path / "run")
    if case.on_env_error == "restart":
        assert outcome.code == 0, outcome.err
        assert found["restarts"] == 1
        return
    assert outcome.code == 1
    count, step = {"step": (4, 3), "reset": (4, 2), "evaluation": (2, 3)}[case.place]
    assert re.search(rf"Environment 0 of {count} \(Hostile-v0\), at step {step}, ", outcome.error), outcome.error
    assert found["status"] == "failed"


def test_the_cases_have_every_kind_place_and_failure():
    found = cases(300)
    assert {case.observation for case in found} == set(OBSERVATIONS)
    assert {case.action for case in found} == set(ACTIONS)
    every = {failure for kind in OBSERVATIONS for failure in failures_of(kind, "step")}
    assert len({case.failure for case in found}) > 0.9 * len(every)
