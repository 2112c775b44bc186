"""Gymnasium's ids of the form ``module:Id``, whose module is imported first."""

import pytest
from run_files import summary

MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
gymnasium.register("Games/Mine-v0", entry_point=CartPoleEnv, max_episode_steps=9)
"""
GIVEN = ("env=gym", "env.id=games_of_mine:Games/Mine-v0")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "games_of_mine.py").write_text(MODULE)
    return tmp_path


def test_an_id_with_its_module_is_trained_evaluated_checked_and_resumed(train, evaluate, check, tiny, folder):
    train(*tiny, *GIVEN, "hydra.run.dir=run").succeeded()
    assert check(*tiny, *GIVEN).code == 0
    assert evaluate("run").code == 0
    train("resume=run", "total_frames=96").succeeded()
    assert summary(folder / "run")["frames"] == 96


def test_its_registered_limit_counts_for_groups(rejected, folder):
    error = rejected(*GIVEN, "algorithm=grpo", "env.num_envs=32", "frames_per_batch=128", "slice_len=4")
    assert "an episode of games_of_mine:Games/Mine-v0 may have 9" in error


def test_an_id_without_a_module_before_its_colon_is_rejected(rejected):
    error = "env.id=:Mine-v0: importing  fails with ValueError: Empty module name."
    assert rejected("env=gym", "env.id=:Mine-v0").startswith(error)
