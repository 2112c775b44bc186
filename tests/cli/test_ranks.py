"""Runs of several ranks: one run directory, checkpoints that resume, and ranks that end together."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from in_ranks import in_ranks
from run_files import metrics, summary, without_times

from recurrl.checkpoint import files

TINY = ("env.num_envs=12", "frames_per_batch=96", "minibatch_slices=12", "total_frames=192")
"""A run that divides among 1, 2, 3 and 4 ranks."""


@pytest.fixture
def ranks(recurrl_train, tiny, tmp_path) -> Callable[..., list[tuple[int, str, str]]]:
    """Runs ``recurrl-train`` as torchrun would, in forks of this process."""

    def ranks(size: int, *overrides: str) -> list[tuple[int, str, str]]:
        def of_a_rank() -> tuple[int, str, str]:
            for handler in logging.getLogger().handlers[:]:
                logging.getLogger().removeHandler(handler)
            outcome = recurrl_train(*tiny, *TINY, *overrides, cwd=tmp_path)
            return outcome.code, outcome.out, outcome.err

        return in_ranks(size, of_a_rank)

    return ranks


def saved(checkpoint: Path) -> dict[str, str]:
    """The checksum of each component."""
    sums = json.loads((checkpoint / files.CHECKSUMS).read_text(encoding="utf-8"))
    return {name: found for name, found in sums.items() if name.startswith("components/")}


def test_ranks_have_one_run_directory_in_which_rank_0_alone_writes(ranks, tmp_path):
    (code, out, err), (other, said, told) = ranks(2, "checkpoint.every_frames=96")
    assert (code, other) == (0, 0), err + told
    assert (said, told) == ("", "")
    assert "192 frames in" in out
    (run,) = (tmp_path / "outputs").glob("*/*")
    assert [row["frames"] for row in metrics(run)] == ["96", "192"]
    assert summary(run)["status"] == "completed"
    assert [path.name for path in files.checkpoints_in(run / "checkpoints")] == [
        "frames_000000000096",
        "frames_000000000192",
    ]


def test_episodes_of_all_ranks_are_counted(ranks, train, tiny, tmp_path):
    limit = "env.max_episode_steps=2"
    assert ranks(2, limit, "hydra.run.dir=run")[0][0] == 0
    assert metrics(tmp_path / "run")[-1]["train/episodes"] == "96.0"


@pytest.mark.parametrize("size", [2, 3])
def test_a_run_resumed_with_as_many_ranks_is_the_one_that_was_not_interrupted(ranks, tmp_path, size):
    options = ("checkpoint.every_frames=96", "checkpoint.keep_last=null")
    assert ranks(size, *options, "hydra.run.dir=whole")[0][0] == 0
    start = "whole/checkpoints/frames_000000000096"
    assert ranks(size, f"resume={start}", "hydra.run.dir=resumed")[0][0] == 0
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert without_times(metrics(resumed)) == without_times(metrics(whole))[1:]
    last = "checkpoints/frames_000000000192"
    assert saved(resumed / last) == saved(whole / last)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_a_run_resumed_with_another_number_of_ranks_continues_the_episodes(ranks, tmp_path, before, after):
    # No episode ends by its limit within the first iteration, and each does within the second.
    options = ("env=pendulum_no_velocity", "env.max_episode_steps=12", "checkpoint.every_frames=96")
    assert ranks(before, *options, "total_frames=96", "hydra.run.dir=run")[0][0] == 0
    outcomes = ranks(after, "resume=run", "total_frames=192", "hydra.run.dir=run")
    assert [code for code, _, _ in outcomes] == [0] * after, outcomes
    said = outcomes[0][1] + outcomes[0][2]
    assert f"is of {before} ranks, and there are {after} now: random numbers are new." in said
    rows = metrics(tmp_path / "run")
    assert [row["frames"] for row in rows] == ["96", "192"]
    assert [row["train/episodes"] for row in rows] == ["0.0", "12.0"]
    assert rows[-1]["train/episode_length_mean"] == "12.0"


def test_episodes_that_cannot_be_divided_start_over_and_the_log_says_so(ranks, tmp_path):
    options = ("env.vectorization=vector_entry_point", "hydra.run.dir=run")
    assert ranks(2, *options, "total_frames=96")[0][0] == 0
    [(code, out, err)] = ranks(1, "resume=run", "hydra.run.dir=run")
    assert code == 0, err
    assert "Unfinished episodes are restarted: those of 2 ranks were saved together, and cannot be divided" in out


def test_a_signal_to_any_rank_ends_all_with_a_checkpoint(ranks, tmp_path, monkeypatch):
    from recurrl.learning.learner import Learner

    learn = Learner.learn

    def interrupted(*arguments, **options):
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)
        return learn(*arguments, **options)

    monkeypatch.setattr(Learner, "learn", interrupted)
    (code, _, err), (other, _, told) = ranks(2, "hydra.run.dir=run")
    assert (code, other) == (143, 0), err + told
    found = summary(tmp_path / "run")
    assert (found["status"], found["frames"]) == ("interrupted", 96)
    assert found["checkpoint"] == "checkpoints/frames_000000000096"


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_ends_the_others_which_say_why(ranks, tmp_path, monkeypatch, failing):
    from recurrl.errors import RunError
    from recurrl.learning.learner import Learner

    def broken(*arguments, **options):
        if os.environ["RANK"] == str(failing):
            raise RunError("The sky fell.")
        time.sleep(0.2)
        return learn(*arguments, **options)

    learn = Learner.learn
    monkeypatch.setattr(Learner, "learn", broken)
    outcomes = ranks(2, "hydra.run.dir=run")
    assert [code for code, _, _ in outcomes] == [1, 1]
    assert "error: " in outcomes[failing][2]
    assert outcomes[failing][2].rstrip().endswith("The sky fell.")
    assert re.search(rf"Rank {failing} of 2 \(process \d+ on .*\) failed: .*The sky fell\.", outcomes[1 - failing][2])
    found = summary(tmp_path / "run")
    assert found["status"] == "failed"
    assert "The sky fell." in found["error"]
