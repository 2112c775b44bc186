"""Environments of other packages: trained in, checked, saved, resumed and evaluated."""

import importlib.util

import pytest
from run_files import ended
from slow_cases import slow_but

from recurrl.envs import make_env
from recurrl.envs.sources import gymnasium as gymnasium_source

ENVIRONMENTS = {
    "LunarLander-v3": ("box2d", ("Box2D",), ("env=gym",)),
    "LunarLanderContinuous-v3": ("box2d", ("Box2D",), ("env=gym",)),
    "CarRacing-v3": ("box2d", ("Box2D",), ("env=gym",)),
    "InvertedPendulum-v5": ("mujoco", ("mujoco",), ("env=gym",)),
    "HalfCheetah-v5": ("mujoco", ("mujoco",), ("env=gym",)),
    "MiniGrid-MemoryS7-v0": ("minigrid", ("minigrid",), ("env=minigrid",)),
    "ALE/Breakout-v5": ("atari", ("ale_py",), ("env=gym", "env.packages=[ale_py]")),
    "ALE/Pong-v5": ("atari", ("ale_py", "cv2"), ("env=atari",)),
}


def require(extra, *packages):
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    assert not missing, f"Install what this test is about: pip install -e '.[{extra}]'"


FAST = {"LunarLander-v3", "InvertedPendulum-v5", "MiniGrid-MemoryS7-v0"}


@pytest.mark.parametrize("env_id", slow_but(FAST, ENVIRONMENTS))
def test_a_run_is_trained_checked_saved_resumed_and_evaluated(env_id, train, check, evaluate, tiny, tmp_path):
    extra, packages, overrides = ENVIRONMENTS[env_id]
    require(extra, *packages)
    # Images have no use for the widths of dense layers.
    small = [override for override in tiny if not override.startswith("encoder.")]
    small += ["epochs=1", "evaluation.memory=false", "evaluation.random=false"]
    arguments = (*small, *overrides, f"env.id={env_id}", "env.max_episode_steps=20", "env.num_envs=2")
    checked = check(*arguments).succeeded()
    assert "Checkpoints cannot hold unfinished episodes; a resumed run starts new ones." in checked.out
    train(*arguments, "hydra.run.dir=run").succeeded()
    resumed = train("resume=run", "total_frames=96", "hydra.run.dir=resumed").succeeded()
    assert "Unfinished episodes are restarted" in resumed.out
    assert ended(tmp_path / "resumed", "frames") == ("completed", 96)
    evaluate("resumed").succeeded()
    assert {path.name for path in tmp_path.iterdir()} == {"run", "resumed"}  # MuJoCo logs into the current folder


def test_a_warning_of_mujoco_is_logged_once_and_writes_no_file(compose, tmp_path, in_tmp_path, caplog):
    require("mujoco", "mujoco")
    gymnasium_source._warn_once.cache_clear()  # other tests make the same environment
    make_env(compose("env=gym", "env.id=HalfCheetah-v5").env, 3, seed=0).close()
    assert [record.message.split("'")[1] for record in caplog.records if "MuJoCo" in record.message] == ["settotalmass"]
    assert not list(tmp_path.iterdir())


def test_a_step_of_a_preprocessed_atari_game_is_four_frames(compose):
    require("atari", "ale_py", "cv2")
    env = make_env(compose("env=atari").env, 1, seed=0)
    ale = env.base_env.raw.envs[0].unwrapped.ale
    first = env.reset()
    before = ale.getEpisodeFrameNumber()
    assert first["observation"].shape == (1, 84, 84)
    for steps in range(1, 4):
        env.rand_step(first)
        assert ale.getEpisodeFrameNumber() == before + 4 * steps
    env.close()
