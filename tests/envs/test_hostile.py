"""Hostile environments: a run ends with an error that names the environment and its step, or restarts as asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import ACTIONS, OBSERVATIONS, Case, Hostile, cases, faults_of

FAST = ("backend=reference", "epochs=1", "consistency_check=false", "total_frames=32", "logger=csv")


def assert_ends_as_it_must(case: Case, recurrl_train: Callable[..., Any], tiny: list[str], folder: Path) -> None:
    # Images have no use for the widths of dense layers.
    small = [key for key in tiny if not (case.observation == "image" and key.startswith("encoder."))]
    outcome = recurrl_train(
        *small,
        *FAST,
        *("env=gym", "env.packages=[hostile]", "env.id=Hostile-v0", "hydra.run.dir=run", "collector.timeout_s=2"),
        *(f"+env.kwargs.{key}='{getattr(case, key)}'" for key in ("observation", "action", "fault", "place")),
        f"collector.on_fault={case.on_fault}",
        cwd=folder,
    )
    assert "Traceback" not in outcome.err, outcome.err
    summary = json.loads((folder / "run" / "summary.json").read_text())
    if case.on_fault == "restart":
        assert outcome.code == 0, outcome.err
        assert summary["restarts"] == 1
        return
    assert outcome.code == 1
    count, step = {"step": (4, 3), "reset": (4, 2), "evaluation": (2, 3)}[case.place]
    assert re.search(rf"Environment 0 of {count} \(Hostile-v0\), at step {step}, ", outcome.error), outcome.error
    assert summary["status"] == "failed"


QUICK = cases(27, seed=1)


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=f"{i} {' '.join(case)}") for i, case in enumerate(QUICK)),
        *(
            pytest.param(case, id=f"{i} {' '.join(case)}", marks=pytest.mark.slow)
            for i, case in enumerate(cases(300), len(QUICK))
        ),
    ],
)
def test_a_run_ends_with_the_environments_name_and_step_or_restarts_as_asked(
    case: Case, recurrl_train: Callable[..., Any], tiny: list[str], tmp_path: Path
) -> None:
    assert_ends_as_it_must(case, recurrl_train, tiny, tmp_path)


def test_the_cases_have_every_kind_place_and_fault() -> None:
    found = cases(300)
    assert {case.observation for case in found} == set(OBSERVATIONS)
    assert {case.action for case in found} == set(ACTIONS)
    every = {fault for kind in OBSERVATIONS for fault in faults_of(kind, "step")}
    assert len({case.fault for case in found}) > 0.9 * len(every)


def _accepted() -> dict[str, dict[str, Any]]:
    flags: dict[str, Any] = {"int": 0, "numpy": np.bool_(False), "array": np.array([False]), "0-d": np.array(0)}
    return {"flag": flags, "reward": {"int": 1, "0-d": np.array(1.0), "array": np.ones(1), "half": np.float16(1)}}


@pytest.mark.parametrize(
    ("what", "name"), [(what, name) for what, values in _accepted().items() for name in values], ids=str
)
@pytest.mark.parametrize("previous", ["true", "false"])
def test_values_with_only_one_meaning_are_accepted(
    what: str,
    name: str,
    previous: str,
    recurrl_train: Callable[..., Any],
    tiny: list[str],
    tmp_path: Path,
    register: Callable[..., str],
) -> None:
    class Unusual(Hostile):
        def step(self, action: Any) -> Any:
            observation, reward, over, cut, info = super().step(action)
            value = _accepted()[what][name]
            return (
                (observation, value, over, cut, info) if what == "reward" else (observation, reward, over, value, info)
            )

    env_id = register(lambda: Unusual("vector", "bounded", "call hang", "nowhere"))
    outcome = recurrl_train(
        *tiny, *FAST, "env=gym", f"env.id={env_id}", f"env.previous_reward={previous}", cwd=tmp_path
    )
    assert outcome.code == 0, outcome.err
