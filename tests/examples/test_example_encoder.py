"""The encoder of ``examples/extending``: trained, saved, resumed and evaluated by the commands."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXTENDING = Path(__file__).parents[2] / "examples" / "extending"
PREVIOUS = ("env.previous_action=true", "env.previous_reward=true")
BY_YAML = ("--config-dir", "configs", "encoder=fourier")
BY_NAME = ("encoder=my_package.fourier_encoder:make",)


@pytest.fixture
def train(recurrl_train: Callable[..., Any], tiny: list[str], tmp_path: Path) -> Callable[..., Path]:
    """Runs ``recurrl-train`` in ``examples/extending``, and returns the run's directory."""

    def train(name: str, *overrides: str) -> Path:
        sizes = [override for override in tiny if not override.startswith(("encoder.", "total_frames"))]
        outcome = recurrl_train(
            *overrides, *sizes, "backend=reference", f"hydra.run.dir={tmp_path / name}", cwd=EXTENDING
        )
        assert outcome.code == 0, outcome.err
        return tmp_path / name

    return train


def metrics(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return [{key: value for key, value in row.items() if "time" not in key} for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("chosen", "previous"), [(BY_YAML, ()), (BY_NAME, PREVIOUS)], ids=["by yaml, a tensor", "by name, a mapping"]
)
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(
    chosen: tuple[str, ...], previous: tuple[str, ...], train: Callable[..., Path], recurrl_evaluate: Callable[..., Any]
) -> None:
    options = (*chosen, *previous, "encoder.frequencies=5", "schedule_frames=128")
    whole = train("whole", *options, "total_frames=128")
    first = train("first", *options, "total_frames=64")
    resumed = train("resumed", *options, "total_frames=128", f"resume={first}")
    assert metrics(resumed)[-2:] == metrics(whole)[-2:]
    outcome = recurrl_evaluate(str(resumed), "--trust-packages", cwd=EXTENDING)
    assert outcome.code == 0, outcome.err


def test_its_option_is_explained_and_checked(recurrl_train: Callable[..., Any]) -> None:
    printed = recurrl_train(*BY_YAML, "--cfg", "job", cwd=EXTENDING).out
    assert (
        "  frequencies: 32                   # random frequencies, each of which gives a sine and a cosine" in printed
    )
    refusal = recurrl_train(*BY_NAME, "encoder.frequencies=0", cwd=EXTENDING).error
    assert refusal == "encoder.frequencies must be an integer from 1 to 65_536 (got 0)."


def test_what_it_cannot_encode_is_rejected_by_name(recurrl_train: Callable[..., Any], tiny: list[str]) -> None:
    discrete = ("env=gym", "env.id=FrozenLake-v1", "device=cpu")
    refusal = recurrl_train(*BY_YAML, *discrete, cwd=EXTENDING).error
    assert refusal == (
        "encoder=my_package.fourier_encoder:make takes continuous observations, not torch.int64. Choose encoder=mlp."
    )
