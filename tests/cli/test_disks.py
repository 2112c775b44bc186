"""Runs on a disk that is full or not to be written to: what they say, and what they leave."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
from run_files import metrics, summary

from recurrl.checkpoint import files
from recurrl.cli import job
from recurrl.cli import train as train_command
from recurrl.tracking.csv import CsvTracker

FULL = "The disk is full: No space left on device"
EVERY = ("checkpoint.every_frames=32", "total_frames=128", "hydra.run.dir=run", "resume=auto")


@pytest.fixture
def full_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, int], None]:
    """Makes a function fail as on a full disk, after so many calls."""

    def full_after(owner: Any, name: str, calls: int) -> None:
        function = getattr(owner, name)
        left = [calls]

        def failing(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, failing)

    return full_after


@pytest.mark.parametrize(
    ("owner", "name", "calls", "checkpoints"),
    [(files, "_sync", 25, 1), (CsvTracker, "log", 2, 2)],
    ids=["while a checkpoint is written", "while metrics.csv is written"],
)
def test_a_full_disk_ends_the_run_with_a_sentence_and_the_run_goes_on_when_there_is_space(
    train, tiny, tmp_path, full_after, monkeypatch, owner, name, calls, checkpoints
):
    with monkeypatch.context() as patch:
        patch.setattr(train_command, "_finished", [])
        full_after(owner, name, calls)
        outcome = train(*tiny, *EVERY)
    assert outcome.code == 1
    assert outcome.error.startswith(FULL)
    assert "Traceback" not in outcome.err
    run = tmp_path / "run"
    assert summary(run)["status"] == "failed"
    assert FULL in summary(run)["error"]
    found = files.checkpoints_in(run / "checkpoints")
    assert len(found) == checkpoints
    assert [files.damage(path) for path in found] == [None] * checkpoints
    assert {path.name for path in run.rglob(".*")} == {".hydra"}
    monkeypatch.undo()
    assert train(*tiny, *EVERY).code == 0
    assert [row["frames"] for row in metrics(run)] == ["32", "64", "96", "128"]


def test_a_summary_that_cannot_be_written_makes_the_run_fail_with_a_sentence(train, tiny, full_after):
    full_after(job, "write_summary", 0)
    outcome = train(*tiny)
    assert outcome.code == 1
    assert outcome.error.startswith(f"summary.json cannot be written. {FULL}")
    assert "Traceback" not in outcome.err


def test_of_a_run_that_failed_the_error_is_what_is_said_and_the_summary_comes_second(train, full_after):
    full_after(job, "write_summary", 0)
    outcome = train("seed=-1")
    assert outcome.error.startswith("seed=-1 is out of range.")
    assert "summary.json cannot be written: [Errno 28]" in outcome.err


def test_a_run_directory_that_cannot_be_made_is_refused_with_a_sentence(train, tiny, tmp_path):
    (tmp_path / "file").touch()
    outcome = train(*tiny, f"hydra.run.dir={tmp_path}/file/run")
    assert outcome.code == 1
    assert outcome.error == (
        f"The operating system refuses it: Not a directory for {tmp_path}/file/run. Give a directory to write to with "
        "hydra.run.dir=..."
    )
    assert "Traceback" not in outcome.err


def test_what_a_killed_process_left_half_written_is_removed_when_the_run_goes_on(train, tiny, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".metrics.csv.1234.tmp").write_text("fra")
    assert train(*tiny, "resume=auto", "hydra.run.dir=run").code == 0
    assert {path.name for path in (tmp_path / "run").glob(".*")} == {".hydra"}
