"""A run that is killed again and again, at random moments, ends as one that was left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from disks import with_a_disk_of_its_own
from run_files import metrics, summary, without_times

PROGRAM = Path(__file__).with_name("killed_again_and_again.py")
ITERATIONS = 120


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_bit_for_bit_as_one_that_was_not(train, tiny, tmp_path):
    kills, frames = 30, ITERATIONS * 32
    arguments = [*tiny, f"total_frames={frames}", "checkpoint.every_frames=32", "backend=pad"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train(*arguments, f"hydra.run.dir={whole}").code == 0
    own = with_a_disk_of_its_own("/dev/shm", "64m")
    before = set() if own else {path.name for path in Path("/dev/shm").iterdir()}
    program = [*own, sys.executable, PROGRAM, killed, str(kills), *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    ends = said["lives"]
    assert len(ends) == kills
    assert sum(end["within_a_checkpoint"] for end in ends) == kills // 3
    # They were spread over the run.
    assert ends[-1]["frames"] > frames / 2
    assert summary(killed)["status"] == "completed"
    assert without_times(metrics(killed)) == without_times(metrics(whole))
    assert _weights(killed, frames) == _weights(whole, frames)
    assert {path.name for path in killed.rglob(".*")} == {".hydra"}
    assert set(said["shared_memory"]) <= before
    assert not _processes_with(str(killed))


def _weights(run: Path, frames: int) -> dict[str, bytes]:
    folder = run / "checkpoints" / f"frames_{frames:012d}"
    states = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*/state.pt")}
    assert len(states) > 3
    return {name: state for name, state in states.items() if "policy" in name or "optimizer" in name}


def _processes_with(argument: str) -> list[str]:
    lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if argument in line and " ps " not in line]
