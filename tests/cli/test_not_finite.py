"""A run that ends because learning yields no numbers any more, and what there is to see of it."""

import re
import shutil

import gymnasium
import pytest
import torch
from checkpoint_files import resealed
from run_files import summary

from recurrl.checkpoint import files


@pytest.fixture
def ended(train, tiny, register, tmp_path):
    """A run whose rewards are numbers, but too large for the squares of them to be."""
    env = register(lambda: gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda _: 1e30))
    ours = ["env=gym", f"env.id={env}", "cell=lstm", "env.normalize_reward=false", "epochs=10"]
    outcome = train(*tiny, *ours, "total_frames=96", "env.reward_scale=1.0", "hydra.run.dir=run")
    return outcome, tmp_path / "run" / "not_finite" / "frames_000000000000"


def test_the_run_ends_with_an_error_message_that_says_how_to_see_why(ended, tmp_path):
    outcome, kept = ended
    assert outcome.code == 1
    assert "gradient steps had a non-finite loss or gradient" in outcome.error
    assert outcome.error.endswith(f"To find where they appear: recurrl-check --not-finite {kept}")
    found = summary(tmp_path / "run")
    assert (found["status"], found["frames"]) == ("failed", 0)
    assert found["error"].startswith("NonFiniteError: ")
    assert files.damage(kept) is None


def test_what_was_kept_is_gone_over_again_and_shows_where_the_numbers_end(ended, recurrl_check, tmp_path):
    _, kept = ended
    outcome = recurrl_check("--not-finite", kept, cwd=tmp_path).succeeded()
    lines = outcome.out.splitlines()
    [reward] = [line for line in lines if line.startswith("next reward: ")]
    assert reward == "next reward: largest 1e+30 in environment 0 at step 0 of the row"
    minibatches = [line for line in lines if line.startswith("minibatch ")]
    assert len(minibatches) == 2
    for line in minibatches:
        assert "loss/critic inf" in line


def test_nothing_that_was_kept_elsewhere_is_gone_over(ended, finished_run, recurrl_check, tmp_path):
    checkpoint = finished_run / "checkpoints" / "frames_000000000064"
    outcome = recurrl_check("--not-finite", checkpoint, cwd=tmp_path).failed()
    assert outcome.error.startswith(f"The rows of the checkpoint {checkpoint} cannot be read: ")
    copied = shutil.copytree(ended[1], tmp_path / "copy" / "run" / "frames_000000000000")
    assert "Traceback" not in recurrl_check("--not-finite", copied, cwd=tmp_path).err
    assert recurrl_check("--not-finite", "nowhere", cwd=tmp_path).error.startswith("nowhere does not exist.")


def test_a_place_that_is_not_finite_is_named(ended, recurrl_check, tmp_path):
    _, kept = ended
    rows = kept / "state-rows.pt"
    state = torch.load(rows, weights_only=True)
    state["advantage"][2, 5] = torch.nan
    torch.save(state, rows)
    resealed(kept)
    lines = recurrl_check("--not-finite", kept, cwd=tmp_path).out.splitlines()
    assert "advantage: not finite, nan in environment 2 at step 5 of the row" in lines
    [spoilt] = [line for line in lines if "loss/objective nan" in line]
    [parameters] = re.findall(r"gradient non-finite in (.*)", spoilt)
    assert any(name.startswith("actor_head") for name in parameters.split(", "))
