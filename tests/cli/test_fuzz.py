"""Random command lines: each is a run, or is refused with a sentence."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from random_overrides import SLOW_TO_START, SMALL, draw


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 30), *(pytest.param(first, 100, marks=pytest.mark.slow) for first in range(1_000, 2_000, 100))],
)
def test_a_random_command_line_is_a_run_or_is_refused_with_a_sentence(
    first: int, count: int, recurrl_train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise kernels would be interpreted, and episodes without an end be played for minutes.
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr("recurrl.evaluation.MOST_STEPS", 50)
    became: Counter[str] = Counter()
    for seed in range(first, first + count):
        overrides = draw(random.Random(seed))
        if any(choice in override for override in overrides for choice in SLOW_TO_START):
            continue
        outcome = recurrl_train(*overrides, "hydra.run.dir=run", cwd=tmp_path)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        said = f"seed {seed}: {' '.join(repr(o) for o in overrides if o not in SMALL)}\n{outcome.err}"
        assert "Traceback" not in outcome.err, said
        assert outcome.code == (1 if outcome.error else 0), said
        became["refused" if outcome.error else "run"] += 1
    assert min(became["run"], became["refused"]) >= count / 10, became
