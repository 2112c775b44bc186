"""The suite of tasks, and what is reported of its runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import returns
from benchmarks.returns import Job, Result, Task, interquartile_mean, interval, report, result, suite
from recurrl.config import TrainConfig

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
    assert {key.partition(".")[0] for key in keys} == {"env"}
    assert not keys & LEARNING
    assert task.text.endswith(".")
    assert set(task.published) in ({"return", "frames", "source"}, set())


def test_the_interquartile_mean_leaves_out_the_lowest_and_highest_quarter():
    assert interquartile_mean([0, 1, 2, 3, 4, 5, 6, 1000]) == 3.5
    assert interquartile_mean([7, 8]) == 7.5
    low, high = interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert 1.0 <= low < 3.0 < high <= 100.0
    assert interval([5.0, 5.0]) == (5.0, 5.0)


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


@pytest.mark.slow
def test_runs_that_are_finished_are_kept_and_those_that_were_stopped_go_on(tmp_path: Path, capsys):
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
