"""Evaluations that a signal ends, or an environment: the policy is saved before them, and nothing is lost."""

import itertools
import os
import signal

import pytest
from failing_env import FAILING
from run_files import ended, lasting, metrics, summary, without_times

from recurrl import evaluation
from recurrl.evaluation import KEPT, ZEROED

OPTIONS = (*FAILING, "env.max_episode_steps=60", "checkpoint.keep_last=1", "hydra.run.dir=run")
AFTER = 40
"""The steps of an environment's life after which it fails; those that are trained in have 16."""


def signal_in_evaluation(monkeypatch, which, kind):
    """Sends a signal to this process once, at the fifth step of an evaluation of a kind; returns the steps after it."""
    evaluate, begun, after = evaluation.evaluate, [], []

    def watched(config, policy, episodes, seed, states, stopped):
        begun.extend([] if policy is None else [states])
        steps = itertools.count(1)

        def counting():
            if next(steps) == 5 and begun.count(kind) == which and not after:
                os.kill(os.getpid(), signal.SIGTERM)
                after.append(0)
            elif after:
                after[0] += 1
            return stopped()

        return evaluate(config, policy, episodes, seed, states, counting)

    monkeypatch.setattr(evaluation, "evaluate", watched)
    return after


WHEN = {"mid-run": (1, KEPT, 32), "the last": (2, KEPT, 64), "without memory": (1, ZEROED, 64)}


@pytest.mark.parametrize(("which", "kind", "frames"), WHEN.values(), ids=WHEN)
def test_a_signal_ends_an_evaluation_that_a_resume_repeats(train, tiny, tmp_path, monkeypatch, which, kind, frames):
    arguments = (*tiny, "evaluation.every_frames=32", "resume=auto")
    train(*arguments, "hydra.run.dir=whole").succeeded()
    steps_after = signal_in_evaluation(monkeypatch, which, kind)
    outcome = train(*arguments, "hydra.run.dir=parts")
    monkeypatch.undo()
    assert outcome.code == 143
    assert steps_after == [0]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    checkpoint = f"checkpoints/frames_{frames:012d}"
    assert ended(parts, "frames", "error", "checkpoint") == ("interrupted", frames, None, checkpoint)
    assert [int(row["frames"]) for row in metrics(parts)] == list(range(32, frames, 32))
    train(*arguments, "hydra.run.dir=parts").succeeded()
    assert without_times(metrics(parts)) == without_times(metrics(whole))
    assert lasting(parts) == lasting(whole)


@pytest.fixture
def failing(train, tiny):
    """Runs with environments that fail in evaluations, and only there."""
    return lambda how, *arguments: train(*tiny, *OPTIONS, f"+env.kwargs={{at: {AFTER}, {how}}}", *arguments)


@pytest.mark.parametrize(("by", "how"), [("raising", "raised "), ("hanging", "did not return from step: ")])
def test_an_environment_that_fails_in_the_last_evaluation_costs_no_policy(failing, train, tmp_path, by, how):
    outcome = failing(f"by: {by}", "collector.timeout_s=0.5").failed()
    path = tmp_path / "run" / "checkpoints" / "frames_000000000064"
    environment = f"Environment 0 of 2 (recurrl-test/Failing-v0), at step {AFTER - 1}, {how}"
    assert outcome.error.startswith(f"In the evaluation after 64 frames: {environment}")
    assert f"The policy is saved in {path}" in outcome.error
    assert "Traceback" not in outcome.err
    assert ended(tmp_path / "run", "frames", "checkpoint") == ("failed", 64, f"checkpoints/{path.name}")
    train("resume=run", "env.packages=[failing_env]", f"+env.kwargs={{at: {10**6}, by: {by}}}").succeeded()
    assert [row["frames"] for row in metrics(tmp_path / "run")] == ["32", "64"]
    assert summary(tmp_path / "run")["status"] == "completed"


@pytest.mark.parametrize(("every_frames", "by"), [(32, "raising"), ("null", "hanging")], ids=["mid-run", "at the end"])
def test_with_restart_an_evaluation_is_repeated_in_new_environments(failing, train, tmp_path, by, every_frames):
    restart = ("collector.on_env_error=restart", "collector.timeout_s=0.5", f"evaluation.every_frames={every_frames}")
    outcome = failing(f"by: {by}, marker: {tmp_path / 'failed'}", *restart).succeeded()
    first = 32 if every_frames == 32 else 64
    assert f"Restart 1, with new episodes: In the evaluation after {first} frames: Environment " in outcome.out
    run = tmp_path / "run"
    assert [float(row["collect/restarts"]) for row in metrics(run)] == ([1, 1] if first == 32 else [0, 1])
    assert summary(run)["restarts"] == 1
    train("resume=run", "total_frames=96", "env.packages=[failing_env]", "hydra.run.dir=run").succeeded()
    assert summary(run)["restarts"] == 1


def test_an_evaluation_that_always_fails_ends_the_run(failing, tmp_path):
    outcome = failing("by: raising", "collector.on_env_error=restart").failed()
    error = "After 3 restarts in a row without an evaluation: In the evaluation after 64 frames: Environment 0 of 2 "
    assert outcome.error.startswith(error)
    assert outcome.out.count(", with new episodes: ") == 3
    assert summary(tmp_path / "run")["checkpoint"] == "checkpoints/frames_000000000064"
