"""The backend of ``examples/extending``: trained, resumed and evaluated by the commands, and given to a module."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from my_package.loop_backend import Loop, LoopConfig
from tensordict import TensorDict

from recurrl.recurrent import GRUModule, set_recurrent_mode

EXTENDING = Path(__file__).parents[2] / "examples" / "extending"
NAME = "my_package.loop_backend:Loop"


def losses(run: Path) -> list[float]:
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        found = [float(row[key]) for row in csv.DictReader(file) for key in row if key.startswith("loss/") and row[key]]
    assert found
    return found


def test_it_trains_as_the_reference_does_and_is_resumed_and_evaluated(
    recurrl_train: Callable[..., Any], recurrl_evaluate: Callable[..., Any], tiny: list[str], tmp_path: Path
) -> None:
    for name, backend in {"own": f"backend={NAME}", "reference": "backend=reference"}.items():
        done = recurrl_train(backend, *tiny, f"hydra.run.dir={tmp_path / name}", cwd=EXTENDING)
        assert done.code == 0, done.err
    assert losses(tmp_path / "own") == pytest.approx(losses(tmp_path / "reference"), rel=1e-3, abs=1e-6)
    assert NAME in (tmp_path / "own" / "summary.json").read_text(encoding="utf-8")
    more = (f"backend={NAME}", "backend.project_first=false", *tiny, "total_frames=96", f"resume={tmp_path / 'own'}")
    done = recurrl_train(*more, f"hydra.run.dir={tmp_path / 'more'}", cwd=EXTENDING)
    assert done.code == 0, done.err
    assert "--trust-packages" in recurrl_evaluate(str(tmp_path / "own"), cwd=EXTENDING).err
    done = recurrl_evaluate(str(tmp_path / "own"), "--trust-packages", cwd=EXTENDING)
    assert done.code == 0, done.err


def test_what_it_does_not_support_and_what_is_no_backend_are_refused(
    recurrl_train: Callable[..., Any], tiny: list[str]
) -> None:
    done = recurrl_train(f"backend={NAME}", *tiny, "recompute=full", cwd=EXTENDING)
    assert "recompute=full is not possible with this loop" in done.error
    done = recurrl_train("backend=my_package.loop_backend:Missing", *tiny, cwd=EXTENDING)
    assert "has no Missing" in done.error


def test_a_module_takes_it() -> None:
    torch.manual_seed(0)
    layer = GRUModule(3, 5, in_key="x", out_key="y", recurrent_backend=Loop(LoopConfig(name=NAME, project_first=False)))
    data = TensorDict({"x": torch.randn(4, 8, 3), "is_init": torch.rand(4, 8, 1) < 0.3}, [4, 8])
    with set_recurrent_mode(True):
        found = layer(data.clone())["y"]
        assert layer.backend_in_use == NAME
        layer.recurrent_backend = "reference"
        torch.testing.assert_close(found, layer(data.clone())["y"])
