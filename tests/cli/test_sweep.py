"""``recurrl-train -m``: sweeps over combinations of overrides."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_files import metrics, summary, without_times

GRID = [("gru", 0), ("gru", 1), ("lstm", 0), ("lstm", 1)]


@pytest.fixture(scope="module")
def sweep_call(in_a_folder, recurrl_train, tiny):
    """A sweep over two cells and two seeds."""
    return in_a_folder(recurrl_train, "-m", *tiny, "cell=gru,lstm", "seed=0,1")


@pytest.fixture(scope="module")
def sweep(sweep_call) -> list[Path]:
    """The run directories of its jobs, in the order of ``GRID``."""
    assert sweep_call.outcome.code == 0, sweep_call.outcome.err
    (directory,) = sweep_call.folder.glob("outputs/sweeps/*/*")
    return [directory / str(job) for job in range(len(GRID))]


def test_a_sweep_runs_each_combination_in_a_directory_of_its_own(sweep, sweep_call):
    assert [(summary(run)["cell"], summary(run)["seed"]) for run in sweep] == GRID
    assert {summary(run)["status"] for run in sweep} == {"completed"}
    assert {len(metrics(run)) for run in sweep} == {2}
    assert {(run / "learning_curve.png").is_file() for run in sweep} == {True}
    assert "4 of 4 jobs completed" in sweep_call.outcome.err.splitlines()


def test_the_times_of_a_job_of_a_sweep_are_its_own(sweep):
    walls = [summary(run)["wall_time_s"] for run in sweep]
    assert all(summary(run)["startup_time_s"] < wall for run, wall in zip(sweep, walls, strict=True))
    ended = [(run / "summary.json").stat().st_mtime for run in sweep]
    assert sum(walls[1:]) <= ended[-1] - ended[0] + 0.1


def test_the_last_job_of_a_sweep_is_the_same_as_the_same_run_in_a_process_of_its_own(sweep, console_run):
    assert GRID[3] == ("lstm", 1)
    assert without_times(metrics(sweep[3])) == without_times(metrics(console_run))


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(0, marks=pytest.mark.slow, id="gru-0"),
        pytest.param(1, id="gru-1"),
        pytest.param(2, marks=pytest.mark.slow, id="lstm-0"),
    ],
)
def test_a_job_of_a_sweep_is_the_same_as_the_same_run_alone(train, tiny, tmp_path, sweep, job):
    cell, seed = GRID[job]
    outcome = train(*tiny, f"cell={cell}", f"seed={seed}", "hydra.run.dir=alone")
    assert outcome.code == 0, outcome.err
    assert without_times(metrics(sweep[job])) == without_times(metrics(tmp_path / "alone"))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_another_seed_gives_another_run(sweep, cell):
    first, second = (without_times(metrics(sweep[GRID.index((cell, seed))])) for seed in (0, 1))
    for row, other in zip(first, second, strict=True):
        assert row["policy/entropy"] != other["policy/entropy"]


def test_a_failed_job_does_not_stop_the_others_and_is_named_at_the_end(train, tiny, tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    outcome = train("-m", *tiny, "backend=triton,scan", "hydra.sweep.dir=sweep")
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    assert [summary(tmp_path / "sweep" / job)["status"] for job in ("0", "1")] == ["failed", "completed"]
    lines = outcome.err.splitlines()
    report = lines[lines.index("1 of 2 jobs completed") :]
    (named,) = (line for line in report if line.startswith("failed: "))
    assert "backend=triton" in named
    assert "backend=triton needs a CUDA device" in named
    assert report[-1].startswith("error: backend=triton needs a CUDA device")


def test_a_sweep_over_an_option_that_does_not_exist_is_refused_before_its_first_job(train, tiny, tmp_path):
    outcome = train("-m", *tiny, "cell=gru,nonesuch", "hydra.sweep.dir=sweep")
    assert outcome.code == 1
    assert outcome.error.startswith("cell=nonesuch does not exist.")
    assert not list(tmp_path.glob("sweep/*/summary.json"))
