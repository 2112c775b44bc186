"""The suite of tasks, and what is reported of its runs."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import returns
from benchmarks.returns import Job, Result, Task, bootstrap_95, report, result, suite
from recurrl.config import TrainConfig
from recurrl.returns import interquartile_mean

LEARNING = {"env.reward_scale", "env.normalize_reward", "env.num_envs", "frames_per_batch", "epochs", "lr", "slice_len"}


def test_the_suite_has_three_kinds_of_tasks_and_the_quick_one_is_among_them():
    tasks = suite()
    assert len(tasks) >= 14
    assert {task.kind for task in tasks} == {"classic", "memory", "control"}
    assert set(returns.QUICK) <= {task.name for task in tasks}


@pytest.mark.parametrize("task", suite(), ids=lambda task: task.name)
def test_a_task_says_what_its_environment_is_and_nothing_about_learning(task: Task, compose):
    config: TrainConfig = compose(*task.overrides, f"total_frames={task.frames}")
    assert config.env.id
    keys = {override.partition("=")[0] for override in task.overrides}
    assert {key.partition(".")[0] for key in keys} in ({"env"}, {"experiment"})
    assert not keys & LEARNING
    assert task.text.endswith(".")
    assert set(task.published) in ({"return", "frames", "source"}, set())


def test_the_interquartile_mean_leaves_out_the_lowest_and_highest_quarter():
    assert interquartile_mean([0, 1, 2, 3, 4, 5, 6, 1000]) == 3.5
    assert interquartile_mean([7, 8]) == 7.5
    low, high = bootstrap_95([1.0, 2.0, 3.0, 4.0, 100.0], interquartile_mean)
    assert 1.0 <= low < 3.0 < high <= 100.0
    assert bootstrap_95([5.0, 5.0], interquartile_mean) == (5.0, 5.0)


def test_the_time_to_a_threshold_is_that_of_the_first_evaluation_that_reaches_it():
    run = Result(final=0.2, zeroed=0.0, random=0.0, curve={10: 0.1, 20: 0.9, 30: 0.2}, seconds=60.0)
    assert run.frames_to(0.5) == 20
    assert run.seconds_to(0.5) == 40.0
    assert run.frames_to(2.0) == math.inf


def test_only_a_finished_run_has_a_result(tmp_path: Path):
    assert result(tmp_path) is None
    (tmp_path / "summary.json").write_text(json.dumps({"status": "interrupted"}))
    assert result(tmp_path) is None


def test_the_table_has_a_row_for_each_task_and_cell_with_its_control():
    task = suite()[0]
    run = Result(final=400.0, zeroed=20.0, random=10.0, curve={1000: 480.0, 2000: 400.0}, seconds=8.0)
    control = Result(final=40.0, zeroed=math.nan, random=10.0, curve={1000: 30.0, 2000: 40.0}, seconds=4.0)
    jobs = {Job(task, "gru", 0): run, Job(task, "gru", 1): run, Job(task, "none", 0): control}
    rows = [line for line in report(jobs, []).splitlines() if line.startswith(f"| {task.name} ")]
    assert len(rows) == 1
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert cells[2:5] == ["gru", "2", "400.0 (400.0 to 400.0)"]
    assert "40.0 (40.0 to 40.0)" in cells


def test_the_time_to_a_return_is_compared_with_that_of_a_peer_also_if_it_never_reaches_it():
    task = next(task for task in suite() if task.name == "cartpole_no_velocity")
    ours = Result(final=500.0, zeroed=20.0, random=10.0, curve={1000: 100.0, 2000: 480.0}, seconds=8.0)
    solved = Result(final=480.0, zeroed=math.nan, random=math.nan, curve={4000: 480.0}, seconds=80.0)
    unsolved = Result(final=90.0, zeroed=math.nan, random=math.nan, curve={4000: 90.0}, seconds=150.0)

    def row(*theirs: Result) -> str:
        peers = {Job(task, returns.PEER, seed): each for seed, each in enumerate(theirs)}
        return report({Job(task, "gru", 0): ours, **peers}, []).splitlines()[-1]

    assert row(solved, solved, unsolved).endswith("| gru | 1 | 2,000 | 8.0 | 3 | 2 of 3 | 4,000 | 80.0 | 10.0 |")
    assert row(solved, unsolved, unsolved).endswith("| gru | 1 | 2,000 | 8.0 | 3 | 1 of 3 | – | – | > 18.8 |")


@pytest.mark.slow
@pytest.mark.parametrize("name", [task.name for task in suite() if task.sb3_contrib is not None])
def test_a_peer_trains_on_a_task_of_the_suite(name: str, tmp_path: Path):
    """Needs ``pip install sb3-contrib``."""
    run = Job(next(task for task in suite() if task.name == name), returns.PEER, 0).folder(tmp_path)
    command = [sys.executable, "-m", "benchmarks.peers.sb3_training", name, "0", "256", str(run), "1"]
    subprocess.run(command, check=True, timeout=300)
    found = result(run)
    assert found is not None
    assert list(found.curve.values())[-1] == found.final
    assert 1 < found.seconds < 60


@pytest.mark.slow
def test_runs_that_are_finished_are_kept_and_those_that_were_stopped_are_resumed(tmp_path: Path, capsys):
    import argparse

    parser = argparse.ArgumentParser()
    returns.add_arguments(parser)
    small = ["total_frames=2048", "evaluation.every_frames=1024", "evaluation.episodes=2"]
    where = ["--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]
    asked = ["--tasks", "memory_chain,t_maze", "--seeds", "2", "--cells", "gru,none", *where]
    returns.run(parser.parse_args([*asked, *small]))
    summaries = sorted((tmp_path / "runs").rglob("summary.json"))
    assert len(summaries) == 8
    assert (tmp_path / "out" / "returns.png").stat().st_size > 10_000
    assert capsys.readouterr().out.count("| gru | 2 |") == 2
    times = [path.stat().st_mtime_ns for path in summaries]
    summaries[0].unlink()
    returns.run(parser.parse_args([*asked, *small]))
    assert [path.stat().st_mtime_ns for path in summaries[1:]] == times[1:]
    assert summaries[0].exists()
