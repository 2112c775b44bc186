"""Runs on a disk that is full or not to be written to: what they say, and what they leave."""

import errno
import json
import os
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from commands import output_of
from disks import with_a_small_disk
from failing_env import FAILING
from rejections import error_of
from slow_cases import slow_but

import recurrl
from recurrl.runs import job
from recurrl.runtime.atomic import unfinished

PROGRAM = Path(__file__).parents[1] / "support/full_disk.py"
FULL = "The disk is full (No space left on device)"
EVERY = ("checkpoint.every_frames=32", "total_frames=96", "resume=auto", "backend=pad")


FREE_KIB = {
    "some sizes": ((0, 90, 130, 230, 380), EVERY),
    "all sizes": (range(0, 400, 4), EVERY),
    "all sizes with tensorboard": (range(0, 400, 4), (*EVERY, "logger=tensorboard")),
}


@pytest.mark.parametrize("sizes", slow_but(("some sizes",), FREE_KIB))
def test_a_run_on_a_full_disk_ends_with_an_error_and_continues_with_space(tiny, tmp_path, sizes):
    free_kib, overrides = FREE_KIB[sizes]
    small_disk = with_a_small_disk(tmp_path, "2m")
    arguments = [str(tmp_path), ",".join(map(str, free_kib)), *tiny, *overrides, f"hydra.run.dir={tmp_path}/run"]
    frames = set()
    lines = output_of([*small_disk, sys.executable, PROGRAM, *arguments], timeout=550).splitlines()
    for case in map(json.loads, lines):
        full, after = case["full"], case["after"]
        assert not full["traceback"], case
        assert (full["damaged"], full["hidden"]) == ([], []), case
        assert full["code"] == 0 or (full["error"].startswith((FULL, f"summary.json cannot be written. {FULL}"))), case
        assert "resume=auto in the same hydra.run.dir" in full["error"] or full["code"] == 0, case
        frames.add(len(full["frames"]))
        if 0 < len(full["frames"]) < 3:
            assert (after["code"], after["damaged"], len(after["frames"])) == (0, [], 3), case
    # The disk was full at the beginning, and after one, two and three checkpoints.
    assert frames == {0, 1, 2, 3}


def test_a_run_whose_summary_cannot_be_written_has_an_error_message_and_its_files(train, tiny, tmp_path, monkeypatch):
    no_space = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(job, "write_summary", Mock(side_effect=no_space))
    outcome = train(*tiny).failed()
    assert outcome.error.startswith(f"summary.json cannot be written. {FULL}")
    assert "Traceback" not in outcome.err
    outcome = train(*tiny, *FAILING, "+env.kwargs.at=0")
    assert "the arm is stuck" in outcome.error
    assert "summary.json cannot be written: [Errno 28]" in outcome.err
    wrong = Mock(spec=["on_iteration"], on_iteration=lambda *_: "stop")
    each = [*tiny, "checkpoint.every_frames=32"]
    assert "(got 'stop')" in error_of(recurrl.train, each, run_dir=tmp_path / "run", callbacks=[wrong])
    assert (tmp_path / "run/checkpoints/frames_000000000032").is_dir()


def test_half_written_files_of_a_killed_process_go_when_the_run_resumes(train, tiny, tmp_path):
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    unfinished(tmp_path / "run" / "metrics.csv").write_text("fra")
    unfinished(tmp_path / "run" / ".hydra" / "config.yaml").write_text("env:")
    train(*tiny, "resume=auto", "hydra.run.dir=run").succeeded()
    assert {path.name for path in (tmp_path / "run").rglob(".*")} == {".hydra"}
