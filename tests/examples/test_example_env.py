"""The example of an environment with an option of its own, by the commands."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "extending"
BY_YAML = ("--config-dir", "configs", "env=corridor")
BY_NAME = ("env=my_package.corridor:Corridor", "env.length=6")


@pytest.fixture
def train(recurrl_train: Callable[..., Any], tiny: list[str], tmp_path: Path) -> Callable[..., Path]:
    """Trains in the examples' folder with a small configuration; returns the run's directory."""

    def train(*overrides: str) -> Path:
        run = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        options = overrides[:2] if overrides[0].startswith("-") else ()
        outcome = recurrl_train(*options, *tiny, *overrides[len(options) :], f"hydra.run.dir={run}", cwd=FOLDER)
        assert outcome.code == 0, outcome.err
        return run

    return train


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def last_metrics(run: Path) -> dict[str, str]:
    """The last row of metrics.csv, without times."""
    with (run / "metrics.csv").open() as file:
        *_, last = csv.DictReader(file)
    return {key: value for key, value in last.items() if not key.startswith("time/")}


@pytest.mark.parametrize(("how", "length"), [(BY_YAML, 8), ((*BY_YAML, "env.length=3"), 3), (BY_NAME, 6)], ids=str)
def test_it_trains_with_or_without_a_yaml(how: tuple[str, ...], length: int, train: Callable[..., Path]) -> None:
    run = train(*how)
    assert summary(run)["status"] == "completed"
    env = yaml.safe_load((run / "config.yaml").read_text())["env"]
    assert (env["source"], env["length"]) == ("my_package.corridor:Corridor", length)


def test_it_takes_the_options_of_every_environment(train: Callable[..., Path]) -> None:
    wrappers = "env.wrappers=[{wrapper:gymnasium.wrappers:RescaleObservation,min_obs:-2,max_obs:2}]"
    run = train(*BY_NAME, wrappers, "env.previous_action=true", "env.previous_reward=true", "env.max_episode_steps=4")
    assert summary(run)["status"] == "completed"


def test_it_trains_by_grpo_whose_groups_start_alike(train: Callable[..., Path]) -> None:
    assert summary(train(*BY_NAME, "algorithm=grpo", "algorithm.group_size=2"))["status"] == "completed"


def test_a_resumed_run_ends_like_an_uninterrupted_one(train: Callable[..., Path]) -> None:
    whole = train(*BY_NAME, "total_frames=128", "checkpoint.every_frames=32")
    halfway = whole / "checkpoints" / "frames_000000000064"
    resumed = train(f"resume={halfway}", "env.source=my_package.corridor:Corridor", "total_frames=128")
    last = [last_metrics(run) for run in (resumed, whole)]
    assert last[0] == last[1]


def test_only_a_trusted_run_is_evaluated(
    train: Callable[..., Path], recurrl_evaluate: Callable[..., Any], recurrl_train: Callable[..., Any]
) -> None:
    run = train(*BY_NAME)
    refused = recurrl_evaluate(run, cwd=FOLDER)
    assert "names code that would be imported and executed: my_package.corridor:Corridor." in refused.error
    assert recurrl_evaluate(run, "--trust-packages", cwd=FOLDER).code == 0
    error = recurrl_train(f"resume={run}", "total_frames=96", cwd=FOLDER).error
    assert error.endswith("name it on this command line too: env.source=my_package.corridor:Corridor.")


def test_it_is_checked_without_training(recurrl_check: Callable[..., Any], tiny: list[str]) -> None:
    checked = recurrl_check(*tiny, *BY_NAME, cwd=FOLDER)
    assert checked.code == 0, checked.err
    assert "Checkpoints cannot hold" not in checked.out


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("env.length=0", "env.length must be an integer from 1 to 1_000 (got 0)."),
        ("env.lenght=3", "Unknown configuration key 'env.lenght'. Did you mean env.length"),
        ("env.kwargs.length=3", 'does not support env.kwargs={"length": 3}. Give env.kwargs={}.'),
        ("env.vectorization=vector_entry_point", "does not support env.vectorization=vector_entry_point. Give env."),
        ("env.packages=[minigrid]", 'does not support env.packages=["minigrid"]. Give env.packages=[].'),
    ],
)
def test_options_that_it_does_not_support_are_rejected(
    override: str, error: str, recurrl_train: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = recurrl_train(*BY_NAME, override, f"hydra.run.dir={tmp_path / 'run'}", cwd=FOLDER)
    assert error in outcome.error, outcome.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("collector", ["multi_sync", "multi_async"])
def test_it_is_collected_from_by_workers(collector: str, train: Callable[..., Path]) -> None:
    run = train(*BY_YAML, f"collector={collector}", "collector.num_workers=2")
    assert summary(run)["status"] == "completed"
