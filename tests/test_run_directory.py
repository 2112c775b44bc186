"""The directory of a run, and how it is found again."""

from __future__ import annotations

from recurrl.run_directory import run_directory_of


def test_a_run_directory_is_found_from_itself_and_from_its_checkpoints(finished_run):
    assert run_directory_of(finished_run) == finished_run
    assert run_directory_of(finished_run / "checkpoints" / "frames_000000000032") == finished_run
