"""The main job: solved environments, by the commands of the README."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recurrl.returns import interquartile_mean

Console = Callable[..., Any]

ROOT = Path(__file__).parents[1]


def train(console: Console, tmp_path: Path, *overrides: str) -> dict[str, Any]:
    """The summary of a run with the given overrides and no others."""
    outcome = console("recurrl-train", "hydra.run.dir=run", *overrides, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    summary: dict[str, Any] = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["warnings"] == {}
    assert "[WARNING]" not in outcome.out
    return summary


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_default_run_solves_cartpole_without_its_velocities(seed: int, console: Console, tmp_path: Path) -> None:
    summary = train(console, tmp_path, f"seed={seed}")
    assert summary["eval_episodes"] == 20
    assert summary["eval_return_mean"] >= 475
    assert summary["frames"] <= 50_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_grpo_solves_cartpole_without_its_velocities(seed: int, console: Console, tmp_path: Path) -> None:
    summary = train(console, tmp_path, "experiment=cartpole_grpo", f"seed={seed}")
    assert summary["eval_episodes"] == 20
    assert summary["eval_return_mean"] >= 475
    assert summary["frames"] <= 160_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("choices", "frames"), [("env=repeat_first", 150_000), ("experiment=repeat_first_grpo", 160_000)]
)
def test_both_algorithms_solve_repeat_first(
    choices: str, frames: int, seed: int, console: Console, tmp_path: Path
) -> None:
    summary = train(console, tmp_path, choices, f"seed={seed}", f"total_frames={frames}")
    assert summary["eval_return_mean"] >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_readmes_own_environment_is_learnt(seed: int, console: Console, tmp_path: Path) -> None:
    acrobot = "env=gym env.id=Acrobot-v1 env.mask=[4,5] total_frames=200_000"
    assert f"scripts/train.py {acrobot}\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    summary = train(console, tmp_path, *acrobot.split(), f"seed={seed}")
    assert summary["eval_return_mean"] >= -100
    assert summary["eval_return_mean_random"] < -400


@pytest.mark.slow
def test_without_memory_it_is_not_solved(console: Console, tmp_path: Path) -> None:
    assert train(console, tmp_path, "cell=none")["eval_return_mean"] < 100


@pytest.mark.slow
def test_the_pendulum_swings_up_without_its_velocity(console: Console, tmp_path: Path) -> None:
    found = []
    for seed in range(5):
        where = tmp_path / str(seed)
        where.mkdir()
        overrides = ("env=pendulum_no_velocity", "total_frames=100_000", f"seed={seed}")
        found.append(train(console, where, *overrides)["eval_return_mean"])
    # What sb3-contrib has in as many frames. One seed of five may be late.
    assert interquartile_mean(found) >= -217.9
