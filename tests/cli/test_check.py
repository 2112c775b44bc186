"""The start-up check from the command line: alone by ``recurrl-check``, and before a run."""

import re

import gymnasium
import pytest
from run_files import ended, metrics, summary
from wrong_environments import Stale

from recurrl.algorithms.ppo import PPO

LINE = (
    r"consistency check passed: the update reproduces the rollout in 32 frames with \d+ resets; largest "
    r"differences: .*"
)
UPDATE = r"one update by algorithm=ppo: \d+ gradient steps; loss/objective \S+, loss/critic \S+, loss/entropy \S+"


# Nothing is trained, so that any total_frames will do.
@pytest.mark.parametrize("frames", [1, 33])
def test_a_right_environment_gives_one_line_and_leaves_nothing_behind(check, tiny, tmp_path, frames):
    outcome = check(*tiny, f"total_frames={frames}").succeeded()
    assert re.fullmatch(f"{LINE}\n{UPDATE}\n", outcome.out), outcome.out
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_environment_is_rejected_alone_and_before_a_run_learns(check, train, tiny, register, tmp_path):
    wrong = (*tiny, "env=gym", f"env.id={register(lambda: Stale(gymnasium.make('CartPole-v1')))}")
    alone, run = check(*wrong).failed(), train(*wrong, "hydra.run.dir=run").failed()
    for outcome in (alone, run):
        assert outcome.error.startswith("The update would not see what the rollout saw: after each of ")
        assert "Traceback" not in outcome.err
    assert alone.out == ""
    assert ended(tmp_path / "run", "frames", "checkpoint") == ("failed", 0, None)
    assert "after each of " in summary(tmp_path / "run")["error"]
    assert metrics(tmp_path / "run") == []


def test_a_loss_that_is_not_finite_is_rejected(check, tiny, monkeypatch):
    monkeypatch.setattr(PPO, "_critic_loss", lambda _, value, *__: (value.mean() * float("nan"), {}))
    advice = "Set a smaller lr, or look for NaN in observations and rewards."
    assert check(*tiny).failed().error == f"algorithm=ppo: loss or gradient is not finite. {advice}"


WRONG = [
    (["cel=gru"], "Unknown configuration key 'cel'. Did you mean cell?"),
    (["slice_len=5"], "slice_len must be a divisor of "),
    (["resume=outputs"], "recurrl-check checks new runs; "),
    (["cell=gru,lstm"], "cell=gru,lstm has several values. Add -m before it"),
]


@pytest.mark.parametrize(("overrides", "sentence"), WRONG)
def test_what_cannot_be_trained_cannot_be_checked(check, no_environments, overrides, sentence):
    outcome = check(*overrides).failed()
    assert outcome.error.startswith(sentence), outcome.err
