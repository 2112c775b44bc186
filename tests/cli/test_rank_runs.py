"""Runs of several ranks: one run directory, checkpoints that resume, and ranks that end together."""

import logging
import os
import re
import signal
import sys
import time
from pathlib import Path

import gymnasium
import pytest
from commands import output_of
from in_ranks import in_ranks
from run_files import column, ended, metrics, state_in, summary, whole_and_resumed
from slow_cases import slow

from recurrl.algorithms import Algorithm
from recurrl.checkpoint import files
from recurrl.collector.single import SingleCollector
from recurrl.errors import EnvError, RunError
from recurrl.runtime.ranks import World

TINY = ("env.num_envs=12", "frames_per_batch=96", "minibatch_slices=12", "total_frames=192")
"""A run that divides among 1, 2, 3 and 4 ranks."""


@pytest.fixture
def ranks(train, tiny):
    """Runs ``recurrl-train`` in several ranks, as torchrun would, each in a fork of this process."""

    def ranks(size, *overrides):
        def called():
            for handler in logging.getLogger().handlers[:]:
                logging.getLogger().removeHandler(handler)
            return train(*tiny, *TINY, *overrides)

        return in_ranks(size, called)

    return ranks


def test_ranks_have_one_run_directory_in_which_rank_0_alone_writes(ranks, tmp_path):
    (code, out, err), (other, other_out, other_err) = ranks(2, "checkpoint.every_frames=96")
    assert (code, other) == (0, 0), err + other_err
    assert (other_out, other_err) == ("", "")
    assert "192 frames in" in out
    (run,) = (tmp_path / "outputs").glob("*/*")
    assert [row["frames"] for row in metrics(run)] == ["96", "192"]
    assert ended(run) == ("completed",)
    assert [path.name for path in files.checkpoints_in(run / "checkpoints")] == [f"frames_{n:012}" for n in (96, 192)]


@pytest.mark.parametrize("size", [2, slow(3)])
def test_a_run_resumed_with_as_many_ranks_is_the_one_that_was_not_interrupted(ranks, tmp_path, size):
    options = ("checkpoint.every_frames=96", "checkpoint.keep_last=null")
    whole_and_resumed(lambda *given: ranks(size, *given)[0], tmp_path, 96, *options)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    last = "checkpoints/frames_000000000192"
    names = files.manifest(whole / last)["checksums"].keys()
    assert files.manifest(resumed / last)["checksums"].keys() == names
    # Not the files' bytes: those of equal states differ where one string is held once or twice.
    for name in names:
        assert state_in(resumed / last / name) == state_in(whole / last / name), name


@pytest.mark.parametrize(("before", "after"), [(2, 1), slow(1, 2), slow(2, 3), slow(3, 2)])
def test_a_run_resumed_with_another_number_of_ranks_learns_on_in_new_episodes(ranks, tmp_path, before, after):
    # No episode ends by its limit within an iteration.
    options = ("env=pendulum_no_velocity", "env.max_episode_steps=12", "checkpoint.every_frames=96")
    assert ranks(before, *options, "total_frames=96", "hydra.run.dir=run")[0][0] == 0
    outcomes = ranks(after, "resume=run", "total_frames=192", "hydra.run.dir=run")
    assert [code for code, _, _ in outcomes] == [0] * after, outcomes
    output = outcomes[0][1] + outcomes[0][2]
    new = "random numbers and episodes are new, and the replay buffer starts empty."
    assert f"was written by {before} ranks, and there are {after} now: {new}" in output
    rows = metrics(tmp_path / "run")
    assert [row["frames"] for row in rows] == ["96", "192"]
    assert [row["train/episodes"] for row in rows] == ["0.0", "0.0"]
    assert rows[0]["policy/entropy"] != rows[1]["policy/entropy"]


def test_a_signal_to_any_rank_ends_all_with_a_checkpoint(ranks, tmp_path, signalled):
    signalled(signal.SIGTERM, rank="1")
    (code, _, err), (other, _, other_err) = ranks(2, "hydra.run.dir=run")
    assert (code, other) == (143, 0), err + other_err
    assert ended(tmp_path / "run", "frames", "checkpoint") == ("interrupted", 96, "checkpoints/frames_000000000096")


def test_restarts_before_a_resume_count_once(ranks, tmp_path, monkeypatch):
    collect, failed = SingleCollector.collect, []

    def failing_once(self):
        if not failed:
            failed.append(True)
            raise EnvError("The arm broke.")
        return collect(self)

    monkeypatch.setattr(SingleCollector, "collect", failing_once)
    options = ("collector.on_env_error=restart", "checkpoint.every_frames=96", "hydra.run.dir=run")
    assert ranks(2, *options, "total_frames=96")[0][0] == 0
    assert ranks(2, "resume=run", "total_frames=192")[0][0] == 0
    # Each process fails once on each rank.
    assert column(tmp_path / "run", "collect/restarts") == [2, 4]
    assert summary(tmp_path / "run")["restarts"] == 4


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_ends_the_others_which_say_why(ranks, tmp_path, monkeypatch, failing):
    def broken(*arguments, **options):
        if os.environ["RANK"] == str(failing):
            raise RunError("The sky fell.")
        time.sleep(0.2)
        return learn(*arguments, **options)

    learn = Algorithm.update
    monkeypatch.setattr(Algorithm, "update", broken)
    outcomes = ranks(2, "hydra.run.dir=run")
    assert [code for code, _, _ in outcomes] == [1, 1]
    assert "error: " in outcomes[failing][2]
    assert outcomes[failing][2].rstrip().endswith("The sky fell.")
    assert re.search(rf"Rank {failing} of 2 \(process \d+ on .*\) failed: .*The sky fell\.", outcomes[1 - failing][2])
    assert ended(tmp_path / "run") == ("failed",)
    assert "The sky fell." in summary(tmp_path / "run")["error"]


def test_losses_that_are_not_finite_end_all_ranks_and_are_named(ranks, register):
    env = register(lambda: gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda _: 1e30))
    for code, _, err in ranks(2, "env=gym", f"env.id={env}", "env.normalize_reward=false", "epochs=10"):
        assert code == 1
        assert "Training produced NaN or Inf" in err
        assert "(not finite: loss/critic)" in err


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["scripts/train.py"], ["-m", "recurrl"]], ids=" ".join)
def test_torchrun_trains_two_ranks_as_the_readme_says(tiny, tmp_path, arguments):
    root = Path(__file__).parents[2]
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    output_of([*launched, *arguments, *tiny, f"hydra.run.dir={tmp_path / 'run'}"], cwd=root, timeout=300)
    assert ended(tmp_path / "run") == ("completed",)


def test_a_signal_that_comes_while_ranks_agree_ends_all_one_iteration_later(ranks, tmp_path, monkeypatch):
    all_gather, signals = World.all_gather, [signal.SIGTERM]

    def late(self, tensor):
        # The requests of a rank are the first integers that it sends.
        if self.rank == 1 and signals and not tensor.is_floating_point():
            os.kill(os.getpid(), signals.pop())
        return all_gather(self, tensor)

    monkeypatch.setattr(World, "all_gather", late)
    (code, _, err), (other, _, other_err) = ranks(2, "hydra.run.dir=run")
    assert (code, other) == (143, 0), err + other_err
    assert ended(tmp_path / "run", "frames") == ("interrupted", 96)
