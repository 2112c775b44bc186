"""Random command lines: each is a run, or is refused with an error message."""

from __future__ import annotations

import multiprocessing
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wandb
from random_overrides import SMALL, draw, is_slow


def processes_left() -> list[multiprocessing.process.BaseProcess]:
    """Of the processes that were started, those that do not end by themselves."""
    for process in multiprocessing.active_children():
        process.join(timeout=20)
    return multiprocessing.active_children()


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keeps evaluations short, wandb on this machine, and its login out of sight."""
    monkeypatch.setattr("recurrl.evaluation.MOST_STEPS", 50)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


@pytest.mark.usefixtures("services")
@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 12), *(pytest.param(first, 100, marks=pytest.mark.slow) for first in range(1_000, 2_000, 100))],
)
def test_a_random_command_line_is_a_run_or_is_refused_with_an_error_message(
    first: int, count: int, recurrl_train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: Counter[str] = Counter()
    for seed in range(first, first + count):
        overrides = draw(random.Random(seed))
        if is_slow(overrides) and count < 100:
            continue
        with pytest.MonkeyPatch.context() as patch:
            if not any("triton" in override for override in overrides):
                # Otherwise backend=auto would measure kernels in the interpreter too.
                patch.delenv("TRITON_INTERPRET", raising=False)
            outcome = recurrl_train(*overrides, "hydra.run.dir=run", cwd=tmp_path)
        left = [str(path) for path in (tmp_path / "run").rglob(".*") if path.name != ".hydra"]
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        said = f"seed {seed}: {' '.join(repr(o) for o in overrides if o not in SMALL)}\n{outcome.err}"
        assert "Traceback" not in outcome.err, said
        assert outcome.code == (1 if outcome.error else 0), said
        assert not left, said
        assert not processes_left(), said
        kind = "slow " if is_slow(overrides) else ""
        became[f"{kind}refused" if outcome.error else f"{kind}run"] += 1
    wandb.teardown()
    assert min(became["run"], became["refused"]) >= count / 10, became
    assert count < 100 or became["slow run"] > 0, became
