"""``examples/extending``: an algorithm from scratch, and one with parameters, through the command line."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

EXTENDING = Path(__file__).parents[2] / "examples" / "extending"
REINFORCE = ("--config-dir", "configs", "algorithm=reinforce", "epochs=1")
PREDICTING = ("--config-dir", "configs", "algorithm=predicting_ppo")


@pytest.fixture
def train(recurrl_train, tmp_path, monkeypatch):
    """Trains in the folder of the examples, into ``tmp_path``; a process of its own would not have them loaded."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        monkeypatch.delitem(sys.modules, name)
    return lambda *arguments, run="run": recurrl_train(*arguments, f"hydra.run.dir={tmp_path / run}", cwd=EXTENDING)


def column(run: Path, name: str) -> list[float]:
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return [float(row[name]) for row in csv.DictReader(file)]


def test_an_algorithm_from_scratch_learns(train, tmp_path):
    outcome = train(*REINFORCE, "total_frames=20480", "evaluation.episodes=2", "lr=5e-3", "minibatch_slices=4")
    assert outcome.code == 0, outcome.err
    returns = column(tmp_path / "run", "train/return_mean")
    assert returns[-1] > 2 * returns[0]


def test_the_error_of_a_prediction_from_the_features_falls(train, tmp_path):
    outcome = train(*PREDICTING, "total_frames=10240", "evaluation.episodes=2")
    assert outcome.code == 0, outcome.err
    errors = column(tmp_path / "run", "prediction/error")
    assert errors[-1] < 0.4 * errors[0]


@pytest.mark.parametrize("algorithm", [REINFORCE, PREDICTING], ids=lambda algorithm: algorithm[2])
def test_a_custom_algorithm_resumes_and_is_evaluated(algorithm, train, tiny, tmp_path, recurrl_evaluate):
    assert train(*algorithm, *tiny).code == 0
    outcome = train(*algorithm, f"resume={tmp_path / 'run'}", "total_frames=96", run="again")
    assert outcome.code == 0, outcome.err
    assert len(column(tmp_path / "again", "frames")) == 1
    assert recurrl_evaluate(tmp_path / "again", "--trust-packages", cwd=EXTENDING).code == 0


def test_options_of_a_custom_algorithm_are_checked_and_can_be_explained(train, tiny):
    assert (
        "algorithm.baseline_coeff must be a number from 0"
        in train(*REINFORCE, *tiny, "algorithm.baseline_coeff=-1").error
    )
    assert "Did you mean algorithm.baseline_coeff" in train(*REINFORCE, *tiny, "algorithm.baseline_coef=1").error
    assert "# weight of the baseline's squared error" in train("--cfg", "job", *REINFORCE).out


@pytest.mark.slow
@pytest.mark.parametrize("collector", ["multi_sync", "multi_async"])
def test_worker_processes_find_a_custom_cell_beside_a_custom_algorithm(console, tiny, tmp_path, collector):
    # In a process of its own, because the tests have the examples on their path.
    arguments = [*PREDICTING, *tiny, "cell=elman", f"collector={collector}", f"hydra.run.dir={tmp_path / 'run'}"]
    outcome = console("recurrl-train", *arguments, cwd=EXTENDING)
    assert outcome.code == 0, outcome.err
    assert len(column(tmp_path / "run", "frames")) == 2
