"""``benchmark.py solve``: contenders, stopping, and the table."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import solve
from benchmarks.peers.task import Task
from benchmarks.solve import DEFAULT, Attempt, contenders, default_task, table


class Scripted:
    """A loop that takes one second per iteration and returns scripted evaluations."""

    def __init__(self, returns: list[float]) -> None:
        self.returns = returns

    def call(self, method: str, *arguments: Any) -> tuple[float, Any]:
        if method == "evaluate":
            return 100.0, self.returns.pop(0)
        return 0.5, None


def attempt(returns: list[float], **options: Any) -> Attempt:
    task = replace(default_task(), envs=10, steps=10, total_frames=1_000)
    arguments = argparse.Namespace(**({"every_frames": 300, "episodes": 2, "limit_s": 60, "target": 475} | options))
    made, remote = Attempt("recurrl", DEFAULT, 0), Scripted(returns)
    while not solve._done(made, task, arguments.limit_s):
        solve._iterate(made, task, remote, arguments)  # type: ignore[arg-type]
    assert not remote.returns
    return made


def test_a_loop_is_done_when_an_evaluation_reaches_the_return_and_evaluations_take_no_time() -> None:
    assert attempt([20.0, 480.0]) == Attempt("recurrl", DEFAULT, 0, 600, 6.0, 480.0, solved=True)


def test_an_unsolved_loop_ends_after_its_frames_with_a_final_evaluation() -> None:
    assert attempt([20.0, 300.0, 200.0, 100.0]) == Attempt("recurrl", DEFAULT, 0, 1_000, 10.0, 300.0, solved=False)


def test_an_unsolved_loop_ends_at_its_time_limit() -> None:
    assert attempt([20.0], limit_s=1.5) == Attempt("recurrl", DEFAULT, 0, 200, 2.0, 20.0, solved=False)


def test_all_loops_share_the_default_task_but_peers_get_more_frames() -> None:
    tasks = contenders(default_task())
    ours, theirs = tasks["recurrl", DEFAULT], tasks["sb3_contrib", DEFAULT]
    assert isinstance(ours, Task)
    assert theirs == replace(ours, cell="lstm", total_frames=200_000)
    assert tasks["torchrl", DEFAULT] == replace(ours, total_frames=200_000)
    assert ours.total_frames == 50_000


def test_the_table_has_medians_over_seeds_and_marks_unsolved_runs() -> None:
    attempts = [
        Attempt("recurrl", DEFAULT, 0, 40_000, 8.0, 500.0, solved=True),
        Attempt("recurrl", DEFAULT, 1, 45_000, 12.0, 480.0, solved=True),
        Attempt("torchrl", DEFAULT, 0, 50_000, 60.0, 21.4, solved=False),
        Attempt("torchrl", DEFAULT, 1, 50_000, 80.0, 499.0, solved=True),
    ]
    lines = table(attempts, 475).splitlines()
    assert lines[-2] == f"| recurrl | {DEFAULT} | 40,000 in 8.0 s | 45,000 in 12.0 s | 10.0 | 1.0 |"
    assert lines[-1] == f"| torchrl | {DEFAULT} | (best 21) 50,000 in 60.0 s | 50,000 in 80.0 s | > 70.0 | > 7.0 |"


@pytest.mark.slow
def test_loops_take_turns_in_separate_processes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = argparse.ArgumentParser()
    solve.add_arguments(arguments)
    chosen = ["--loops", "recurrl,torchrl", "--seeds", "0", "--limit-s", "2", "--episodes", "2", "--target", "5"]
    solve.run(arguments.parse_args([*chosen, "--every-frames", "512"]))
    out = capsys.readouterr().out
    assert "| recurrl | default run | 1,024 in " in out
    assert "| torchrl | default run | 1,024 in " in out
