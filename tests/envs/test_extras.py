"""Environments of other packages: trained in, checked, saved, resumed and evaluated."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENTS = {
    "LunarLander-v3": ("box2d", "Box2D", ()),
    "LunarLanderContinuous-v3": ("box2d", "Box2D", ()),
    "CarRacing-v3": ("box2d", "Box2D", ()),
    "InvertedPendulum-v5": ("mujoco", "mujoco", ()),
    "HalfCheetah-v5": ("mujoco", "mujoco", ()),
    "recurrl-test/MiniGrid-MemoryS7-v0": (
        "minigrid",
        "minigrid",
        ("env.packages=[minigrid,wrapped_minigrid]", "encoder.images=impala"),
    ),
    "ALE/Breakout-v5": ("atari", "ale_py", ("env.packages=[ale_py]",)),
}


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_a_run_is_trained_checked_saved_resumed_and_evaluated(
    env_id: str,
    recurrl_train: Callable[..., Any],
    recurrl_check: Callable[..., Any],
    recurrl_evaluate: Callable[..., Any],
    tiny: list[str],
    tmp_path: Path,
) -> None:
    extra, package, overrides = ENVIRONMENTS[env_id]
    assert importlib.util.find_spec(package), f"Install what this test is about: pip install -e '.[{extra}]'"
    given = (*tiny, *overrides, "env=gym", f"env.id={env_id}", "env.max_episode_steps=20", "env.num_envs=2")
    checked = recurrl_check(*given, cwd=tmp_path)
    assert checked.code == 0, checked.err
    assert "Checkpoints cannot hold unfinished episodes; a resumed run starts new ones." in checked.out
    trained = recurrl_train(*given, "hydra.run.dir=run", cwd=tmp_path)
    assert trained.code == 0, trained.err
    packages = [each for each in overrides if each.startswith("env.packages=")]
    resumed = recurrl_train("resume=run", "total_frames=96", *packages, "hydra.run.dir=resumed", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    assert "Unfinished episodes are restarted" in resumed.out
    summary = json.loads((tmp_path / "resumed" / "summary.json").read_text())
    assert (summary["status"], summary["frames"]) == ("completed", 96)
    evaluated = recurrl_evaluate("resumed", "--trust-packages", cwd=tmp_path)
    assert evaluated.code == 0, evaluated.err
