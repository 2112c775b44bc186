"""Suites of tasks, and what is reported of their runs."""

import argparse
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import returns
from benchmarks.returns_report import Result, bootstrap_95, report, result, verdict
from benchmarks.suites import PEER, Job, all_tasks, chosen
from recurrl.envs.source import source_of
from recurrl.returns import interquartile_mean

LEARNING = {"env.reward_scale", "env.normalize_reward", "env.num_envs", "frames_per_batch", "epochs", "lr", "slice_len"}
TASKS = {task.name: task for task in all_tasks()}
each_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
SMALL = ["total_frames=1024", "frames_per_batch=1024", "evaluation.every_frames=1024", "evaluation.episodes=1"]


def run_of(final=400.0, curve=None, seconds=8.0):
    return Result(final, 390.0, 20.0, 10.0, curve or {1000: 480.0, 2000: final}, seconds)


def test_suites_have_their_tasks_and_a_quick_selection_of_them():
    suites = chosen(["all"], None, quick=False)
    counts = {suite: len(tasks) for suite, tasks in suites.items()}
    assert counts == {"control": 13, "memory": 25, "minigrid": 4, "noise": 5, "popgym": 22}
    for suite, tasks in chosen(["all"], None, quick=True).items():
        assert 1 <= len(tasks) <= 5
        assert set(tasks) <= set(suites[suite])
        assert all(tasks_frames <= 300_000 for tasks_frames in (task.frames for task in tasks))
    assert len(TASKS) == len(all_tasks()), "one name for two tasks"
    expected = {"memory": [TASKS["t_maze"]], "popgym": [TASKS["repeat_first_medium"]]}
    assert chosen(["memory"], ["t_maze", "repeat_first_medium"], quick=False) == expected


def test_a_suite_or_task_that_does_not_exist_is_an_error_with_those_that_do():
    with pytest.raises(SystemExit, match=r"--suite must be among control, .*, all \(got atari\)"):
        chosen(["memory", "atari"], None, quick=False)
    with pytest.raises(SystemExit, match=r"--tasks must be among .*t_maze.* \(got maze\)"):
        chosen(["memory"], ["maze"], quick=False)


@each_task
def test_a_task_says_what_its_environment_is_and_nothing_about_learning(task, compose):
    config = compose(*task.overrides, f"total_frames={task.frames}")
    keys = {override.partition("=")[0] for override in task.overrides} - {"evaluation.episodes"}
    assert {key.partition(".")[0] for key in keys} in ({"env"}, {"experiment"})
    assert not keys & LEARNING
    assert not re.search("NoisyPositionOnlyCartPole|MultiarmedBandit|MineSweeper", config.env.id), "it stays aside"
    assert len(task.published) in (0, 3)
    assert task.at_most is None or task.threshold <= task.at_most


def velocities(env):
    """What the simulation of a task with hidden velocities says they are, in the units of its observation."""
    inner = env.unwrapped
    if hasattr(inner, "data"):
        bound = 10 if inner.spec.name in ("Hopper", "Walker2d") else np.inf
        return np.clip(inner.data.qvel, -bound, bound)
    if inner.spec.name == "LunarLander":
        linear, fps, scale = inner.lander.linearVelocity, 50, 30
        units = 600 / scale / 2 / fps, 400 / scale / 2 / fps, 20 / fps
        return np.array([linear.x, linear.y, inner.lander.angularVelocity]) * units
    indices = {"CartPole": [1, 3], "Acrobot": [2, 3], "Pendulum": [1], "MountainCar": [1], "MountainCarContinuous": [1]}
    return np.asarray(inner.state)[indices[inner.spec.name]]


@pytest.mark.parametrize("task", [task for task in TASKS.values() if task.suites[0] == "control"], ids=lambda t: t.name)
def test_control_hides_the_velocities_and_nothing_else(task, compose):
    source = source_of(compose(*task.overrides).env)
    with source.plain() as env:
        env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(5):
            observation = env.step(env.action_space.sample())[0]
        mask = list(source.options.mask)
        assert np.abs(velocities(env)).max() > 1e-3
        np.testing.assert_allclose(observation[mask], velocities(env), rtol=1e-4, atol=1e-6)
        assert len(mask) == len(velocities(env))


@pytest.mark.slow
@each_task
def test_a_task_starts_trains_an_iteration_and_is_evaluated(task, tmp_path, recurrl_train):
    job = Job(task, "gru", 0)
    short = ["env.max_episode_steps=64"] if "control" in task.suites else []
    recurrl_train(*job.overrides(tmp_path), *SMALL, *short, cwd=tmp_path).succeeded()
    finished = result(job.folder(tmp_path))
    assert finished is not None
    assert math.isfinite(finished.final)
    assert math.isfinite(finished.random)
    text = report({"of one": [task]}, {job: finished}, [])
    assert f"\n| {task.name} | {task.frames:,} | gru | 1 | " in text


def test_the_interquartile_mean_leaves_out_the_lowest_and_highest_quarter():
    assert interquartile_mean([0, 1, 2, 3, 4, 5, 6, 1000]) == 3.5
    assert interquartile_mean([7, 8]) == 7.5
    low, high = bootstrap_95([1.0, 2.0, 3.0, 4.0, 100.0], interquartile_mean)
    assert 1.0 <= low < 3.0 < high <= 100.0
    assert bootstrap_95([5.0, 5.0], interquartile_mean) == (5.0, 5.0)


def test_only_a_finished_run_has_a_result(tmp_path):
    assert result(tmp_path) is None
    (tmp_path / "summary.json").write_text(json.dumps({"status": "interrupted"}))
    assert result(tmp_path) is None


def test_the_table_has_a_row_for_each_task_and_cell_with_its_control():
    task, other = TASKS["cartpole_no_velocity"], TASKS["slippery_walk"]
    control = Result(40.0, 30.0, math.nan, 10.0, {1000: 30.0, 2000: 40.0}, 4.0)
    jobs = {Job(task, "gru", 0): run_of(), Job(task, "gru", 1): run_of(), Job(task, "none", 0): control}
    text = report({"control": [task], "noise": [other]}, jobs, ["lr=1"])
    lines = [line.strip("|").split("|") for line in text.splitlines() if "000 |" in line]
    row, unmeasured = ([cell.strip() for cell in line] for line in lines)
    assert row[2:6] == ["gru", "2", "400.0 (400.0 to 400.0)", "390.0 (390.0 to 390.0)"]
    assert row[6:12] == ["475", "2 of 2", "1,000", "4.0", "40.0 (40.0 to 40.0)", "20.0"]
    assert row[12:] == ["10.0", "500", "500 (100,000; rl-zoo3, sb3-contrib RecurrentPPO)"]
    assert unmeasured == ["slippery_walk", "300,000", *"––––", "0.65", *"–––––", "-0.25", "0.7612", "–"]
    assert text.count("![Learning curves") == 1
    assert "`lr=1`" in text


@pytest.mark.parametrize("suite", ["control", "memory", "minigrid", "noise", "popgym"])
def test_the_page_has_the_tasks_of_each_suite_and_their_published_figures(suite):
    page = (Path(__file__).parents[2] / "docs" / "returns.md").read_text(encoding="utf-8")
    section = page.partition(f"## Suite: {suite}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    expected = report(chosen([suite], None, quick=False), {}, []).splitlines()
    known = [(line.split(" | ")[0], line.split(" | ")[-1]) for line in expected if line.startswith("| ")][1:]
    assert [(row.split(" | ")[0], row.split(" | ")[-1]) for row in rows] == known


def test_the_quick_selection_ends_with_whether_most_seeds_reach_the_thresholds():
    task = TASKS["cartpole_no_velocity"]
    jobs = [Job(task, cell, seed) for cell in ("gru", "none") for seed in range(3)]
    reached, missed = run_of(480.0), run_of(20.0, {1000: 20.0})
    assert "Reproduced: " in verdict(jobs, {jobs[0]: reached, jobs[1]: reached, jobs[2]: missed, jobs[3]: missed})
    assert "cartpole_no_velocity gru (1 of 3)" in verdict(jobs, {jobs[0]: reached, jobs[1]: missed})


def test_the_time_to_a_return_is_compared_with_a_peers_even_if_never_reached():
    task = TASKS["cartpole_no_velocity"]
    ours = run_of(500.0, {1000: 100.0, 2000: 480.0})
    solved, unsolved = run_of(480.0, {4000: 480.0}, 80.0), run_of(90.0, {4000: 90.0}, 150.0)

    def row(*theirs):
        peers = {Job(task, PEER, seed): each for seed, each in enumerate(theirs)}
        return report({"control": [task]}, {Job(task, "gru", 0): ours, **peers}, []).splitlines()[-1]

    assert row(solved, solved, unsolved).endswith("| gru | 1 | 2,000 | 8.0 | 3 | 2 of 3 | 4,000 | 80.0 | 10.0 |")
    assert row(solved, unsolved, unsolved).endswith("| gru | 1 | 2,000 | 8.0 | 3 | 1 of 3 | – | – | > 18.8 |")


@pytest.mark.slow
@pytest.mark.parametrize("name", [task.name for task in TASKS.values() if task.sb3_contrib is not None])
def test_a_peer_trains_on_a_task_of_the_suite(name, tmp_path):
    pytest.importorskip("sb3_contrib", reason="needs pip install sb3-contrib")
    run = Job(TASKS[name], PEER, 0).folder(tmp_path)
    command = [sys.executable, "-m", "benchmarks.peers.sb3_training", name, "0", "256", str(run), "1"]
    subprocess.run(command, check=True, timeout=300)
    finished = result(run)
    assert list(finished.curve.values())[-1] == finished.final
    assert 1 < finished.seconds < 60


@pytest.mark.slow
def test_finished_runs_are_kept_and_stopped_ones_are_resumed(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    returns.add_arguments(parser)
    small = ["total_frames=2048", "evaluation.every_frames=1024", "evaluation.episodes=2"]
    where = ["--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]
    arguments = ["--tasks", "memory_chain,bernoulli_bandit", "--seeds", "2", "--cells", "gru,none", *where]
    returns.run(parser.parse_args([*arguments, *small]))
    summaries = sorted((tmp_path / "runs").rglob("summary.json"))
    assert len(summaries) == 8
    for suite in ("memory", "noise"):
        assert (tmp_path / "out" / f"returns-{suite}.png").stat().st_size > 10_000
    assert capsys.readouterr().out.count("| gru | 2 |") == 2
    times = [path.stat().st_mtime_ns for path in summaries]
    summaries[0].unlink()
    returns.run(parser.parse_args([*arguments, *small]))
    assert [path.stat().st_mtime_ns for path in summaries[1:]] == times[1:]
    assert summaries[0].exists()
