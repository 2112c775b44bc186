"""The tasks of mjlab: with a stand-in for its registry, and slowly with mjlab itself, on a CPU."""

import math
import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from collected import fresh_policy, rollouts
from run_files import summary
from simulators import LENGTH, Simulation

from recurrl.envs.sources.vec_env import release


@dataclass
class Scene:
    num_envs: int = 1


@dataclass
class Configuration:
    scene: Scene = field(default_factory=Scene)
    auto_reset: bool = True
    is_finite_horizon: bool = False
    speed: float = 1.0
    groups: dict = field(default_factory=lambda: {"actor": Scene()})


class Env(Simulation):
    """With the constructor of mjlab's environments."""

    last = None

    def __init__(self, cfg, device):
        super().__init__(cfg.scene.num_envs, "same_step" if cfg.auto_reset else "disabled", device=device)
        Env.last, self.cfg = self, cfg


@pytest.fixture
def mjlab(monkeypatch):
    modules = {name: ModuleType(name) for name in ("mjlab", "mjlab.tasks", "mjlab.tasks.registry", "mjlab.envs")}
    modules["mjlab"].__spec__ = ModuleSpec("mjlab", None)
    modules["mjlab.envs"].ManagerBasedRlEnv = Env
    modules["mjlab.tasks.registry"].list_tasks = lambda: ["Mjlab-Point"]
    modules["mjlab.tasks.registry"].load_env_cfg = lambda _: Configuration()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    sizes = ("env.num_envs=4", "frames_per_batch=48", "slice_len=6", "encoder.sizes=[4]")
    yield ["env=mjlab", "env.id=Mjlab-Point", *sizes]
    release()


@pytest.mark.parametrize("finite", [False, True])
def test_a_task_is_made_of_its_configuration_with_values_replaced(mjlab, compose, finite):
    config = compose(*mjlab, speed=2.0, groups={"actor": {"num_envs": 7}}, is_finite_horizon=finite)
    (rows,) = rollouts(config, fresh_policy(config))
    found = Env.last.cfg
    assert (found.scene.num_envs, found.auto_reset, found.speed, found.groups["actor"].num_envs) == (4, False, 2.0, 7)
    ends = rows["next", "done"][0, :, 0]
    assert ends.nonzero().flatten().tolist() == [LENGTH - 1, 2 * LENGTH - 1]
    assert rows["next", "terminated"][0, :, 0].any() == finite
    assert rows["next", "truncated"][0, :, 0].any() != finite


def test_unknown_tasks_and_values_are_rejected(mjlab, rejected):
    error = "env.id=Mjlab-Line is not a task of mjlab. Choose one of: Mjlab-Point."
    assert rejected(*mjlab[2:], "env=mjlab", "env.id=Mjlab-Line") == error
    error = "env.kwargs.groups has no critic to replace. It has: actor."
    assert rejected(*mjlab, "env.kwargs.groups.critic=1") == error
    assert rejected(*mjlab, "env.kwargs.sped=1").startswith("env.kwargs has no sped to replace. It has: scene, auto_re")


CARTPOLE = [
    *("env=mjlab", "env.id=Mjlab-Cartpole-Balance", "env.num_envs=64", "env.mask=[3,4]", "cell=mingru"),
    *("env.kwargs.episode_length_s=2", "frames_per_batch=2560", "slice_len=20", "minibatch_slices=32"),
    "evaluation.episodes=8",
]


@pytest.mark.slow
def test_cartpole_is_trained_resumed_evaluated_and_exported(console, tmp_path):
    pytest.importorskip("mjlab")
    console("recurrl-train", *CARTPOLE, "total_frames=5120", "hydra.run.dir=run", cwd=tmp_path).succeeded()
    console("recurrl-train", "resume=run", "total_frames=10240", cwd=tmp_path).succeeded()
    found = summary(tmp_path / "run")
    assert found["frames"] == 10240
    assert math.isfinite(found["eval_return_mean"])
    assert "env/Episode_Reward/smooth_reward" in (tmp_path / "run" / "metrics.csv").read_text()
    console("recurrl-evaluate", "run", "--episodes", "70", cwd=tmp_path).succeeded()
    console("recurrl-export", "run", "--format", "onnx", cwd=tmp_path).succeeded()
