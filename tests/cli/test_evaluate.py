"""``recurrl-evaluate``: evaluating a run, or one of its checkpoints."""

from __future__ import annotations

import re
import shutil

import pytest
import torch
from run_files import summary

from recurrl.cli.evaluate_run import evaluate_run


def test_evaluating_a_run_prints_what_its_own_last_evaluation_gave(evaluate, finished_run):
    outcome = evaluate(finished_run)
    found = summary(finished_run)
    assert outcome.code == 0, outcome.err
    printed = re.fullmatch(
        r"return (-?[\d.]+) ± ([\d.]+) over (\d+) episodes \(min (-?[\d.]+), max (-?[\d.]+)\)\n", outcome.out
    )
    assert printed, outcome.out
    assert printed[1] == f"{found['eval_return_mean']:.1f}"
    assert printed[2] == f"{found['eval_return_std']:.1f}"
    assert printed[3] == "2"


def test_evaluating_without_memory_prints_what_the_run_itself_found(evaluate, finished_run):
    outcome = evaluate(finished_run, "--memory")
    assert outcome.code == 0, outcome.err
    normal, zeroed, shuffled = outcome.out.splitlines()
    found = summary(finished_run)
    assert normal.startswith(f"return {found['eval_return_mean']:.1f} ± ")
    assert zeroed.startswith(f"with its memory zeroed: return {found['eval_return_mean_zeroed_state']:.1f} ± ")
    assert shuffled.startswith(f"with another episode's: return {found['eval_return_mean_shuffled_state']:.1f} ± ")


def test_a_policy_that_has_no_memory_cannot_be_evaluated_without_it(train, evaluate, tiny):
    assert train(*tiny, "cell=none", "hydra.run.dir=run").code == 0
    assert evaluate("run", "--memory").error == (
        "--memory concerns recurrent states, but the policy of run has none. Leave it out."
    )


def test_evaluating_the_same_run_twice_gives_the_same_returns(finished_run):
    first = evaluate_run(finished_run, episodes=3, seed=5)
    torch.manual_seed(99)
    assert evaluate_run(finished_run, episodes=3, seed=5) == first
    assert [len(returns) for returns in first.values()] == [3]


def test_a_checkpoint_can_be_evaluated(evaluate, finished_run):
    outcome = evaluate(finished_run / "checkpoints" / "frames_000000000032", "--episodes", 3)
    assert outcome.code == 0, outcome.err
    assert "over 3 episodes" in outcome.out


def test_evaluating_leaves_the_run_as_it_was(evaluate, finished_run, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert evaluate("run").code == 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("nowhere", "nowhere does not exist."), (".", ". is neither a run directory nor a checkpoint in one.")],
)
def test_evaluating_what_is_no_run_is_refused(evaluate, name, sentence):
    outcome = evaluate(name)
    assert outcome.code == 1
    assert outcome.err == (
        f"error: {sentence} Give a run directory (it holds config.yaml and checkpoints/), or one of its checkpoints.\n"
    )


def test_evaluating_no_episodes_is_refused(evaluate, finished_run):
    assert evaluate(finished_run, "--episodes", 0).err == "error: --episodes 0 is too small. Give at least 1.\n"


def test_evaluating_on_a_device_that_is_not_there_is_refused(evaluate, finished_run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    outcome = evaluate(finished_run, "--device", "cuda")
    assert outcome.code == 1
    assert outcome.error.startswith("device=cuda was requested, but torch ")
