"""The main job: solved environments, by the commands of the README."""

from pathlib import Path

import pytest
from run_files import summary

from recurrl.returns import interquartile_mean

ROOT = Path(__file__).parents[1]


def train(console, tmp_path, *overrides, warned=()):
    """The summary of a run with these overrides and no others, and without any other warning."""
    run = tmp_path / f"run {len(list(tmp_path.iterdir()))}"
    outcome = console("recurrl-train", f"hydra.run.dir='{run}'", *overrides, cwd=tmp_path).succeeded()
    result = summary(run)
    assert result["warnings"].keys() <= set(warned)
    assert ("[WARNING]" in outcome.out) <= bool(warned)
    return result


ACROBOT = "env=gym env.id=Acrobot-v1 env.mask=[4,5] total_frames=200_000"
SOLVED = [
    *(("", seed, 475, 50_000) for seed in range(5)),
    *(("experiment=cartpole_grpo", seed, 475, 160_000) for seed in range(3)),
    *(("env=repeat_first total_frames=150_000", seed, 0.9, 150_000) for seed in range(3)),
    *(("experiment=repeat_first_grpo total_frames=160_000", seed, 0.9, 160_000) for seed in range(3)),
    *((ACROBOT, seed, -100, 200_000) for seed in range(3)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("overrides", "seed", "least", "frames"), SOLVED)
def test_it_is_solved(overrides, seed, least, frames, console, tmp_path):
    result = train(console, tmp_path, *overrides.split(), f"seed={seed}")
    assert result["eval_episodes"] == 20
    assert result["eval_return_mean"] >= least > result["eval_return_mean_random"] + 0.5
    assert result["frames"] <= frames


def test_the_readme_has_the_commands_that_are_tested():
    assert f"scripts/train.py {ACROBOT}\n" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_without_memory_it_is_not_solved(console, tmp_path):
    # Where the observation does not tell what to do, actions at random do better than the most probable one.
    assert train(console, tmp_path, "cell=none", warned=["Better when sampled"])["eval_return_mean"] < 100


@pytest.mark.slow
def test_the_pendulum_swings_up_without_its_velocity(console, tmp_path):
    # The mean of 20 episodes has a standard error of 30.
    overrides = ("env=pendulum_no_velocity", "total_frames=100_000", "evaluation.episodes=200")
    runs = [train(console, tmp_path, *overrides, f"seed={seed}") for seed in range(5)]
    # What sb3-contrib has in as many frames. One seed of five may be late.
    assert interquartile_mean([run["eval_return_mean"] for run in runs]) >= -217.9
