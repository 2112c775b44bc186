"""A run that is ended again and again, at random moments, ends as one that was left alone."""

import json
import sys
from pathlib import Path

import pytest
from commands import output_of
from disks import with_a_disk_of_its_own
from run_files import ended, metrics, state_in, without_times
from slow_cases import slow

PROGRAM = Path(__file__).with_name("killed_again_and_again.py")

REPLAY = ["buffer=replay", "buffer.rollouts=4", "buffer.replay_ratio=2", "buffer.min_replay_ratio=2"]
RUNS = [
    pytest.param([], 3, 1, 16, id="single"),
    slow(["collector=multi_sync"], 100, 20, 160, id="multi_sync"),  # seven minutes on two cores that others use too
    slow(REPLAY, 3, 1, 20, id="replay"),
]


@pytest.mark.parametrize(("others", "kills", "terms", "iterations"), RUNS)
def test_a_run_ended_at_random_moments_ends_bit_for_bit_as_one_that_was_not(
    train, tiny, tmp_path, in_tmp_path, monkeypatch, no_compiler, others, kills, terms, iterations
):
    monkeypatch.setenv("RECURRL_CACHE_DIR", str(tmp_path / "cache"))
    frames = iterations * 32
    every = ["checkpoint.every_frames=64", "evaluation.every_frames=128"]
    arguments = [*tiny, *every, f"total_frames={frames}", *others, "backend=auto"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(*arguments, f"hydra.run.dir={whole}").succeeded()
    own = with_a_disk_of_its_own("/dev/shm", "256m")
    before = set() if own else {path.name for path in Path("/dev/shm").iterdir()}
    program = [*own, sys.executable, PROGRAM, killed, *map(str, (kills, terms, frames, 64)), *arguments]
    report = json.loads(output_of(program, timeout=3600))
    lives = report["lives"]
    assert len(lives) == kills + terms
    # They were spread over the run.
    assert max(life["frames"] for life in lives if life["where"] != "last evaluation") > frames / 2
    assert ended(killed) == ("completed",)
    assert without_times(metrics(killed)) == without_times(metrics(whole))
    assert _weights(killed, frames) == _weights(whole, frames)
    assert {path.name for path in killed.rglob(".*")} == {".hydra"}
    assert set(report["shared_memory"]) <= before
    processes = output_of(["ps", "-eo", "pid,args"]).splitlines()
    assert not [line for line in processes if str(killed) in line and " ps " not in line]


def _weights(run, frames):
    folder = run / "checkpoints" / f"frames_{frames:012d}"
    states = {str(path.relative_to(folder)): state_in(path) for path in folder.glob("state-*.pt")}
    assert len(states) > 3
    return {name: state for name, state in states.items() if "policy" in name or "optimizer" in name}
