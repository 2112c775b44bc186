"""Sources of environments outside the package: what they may make, and what is rejected."""

import pytest
from run_files import summary

MODULE = '''
import time
from dataclasses import dataclass

import torch
from torchrl.data import Categorical, Unbounded
from torchrl.envs import RenameTransform, TransformedEnv

from recurrl.config import EnvConfig
from recurrl.config.options import option
from recurrl.envs import Source
from recurrl.envs.sources.memory import MemoryTask


@dataclass
class Options(EnvConfig):
    size: int = option("numbers in an observation", default=2)
    failure: str = option("what goes wrong at the third step", default="")


class Numbers(MemoryTask):
    """Counts steps; episodes have four."""

    def __init__(self, num_envs, options):
        super().__init__(num_envs, Unbounded((num_envs, options.size)), 2, None, "cpu")
        self.options, self.steps = options, 0

    def begin(self, chosen):
        pass

    def move(self, action):
        self.steps += 1
        if self.steps == 3 and self.options.failure == "raises":
            raise RuntimeError("the simulator crashed")
        while self.steps == 3 and self.options.failure == "hangs":
            time.sleep(0.01)
        return torch.ones(len(action)), self.time >= 4

    def observe(self):
        return self.time[:, None].float().repeat(1, self.options.size)


class OnTensors(Source):
    def __init__(self, options: Options):
        super().__init__(options)

    def make(self, num_envs):
        return Numbers(num_envs, self.options)


class TooFew(OnTensors):
    def make(self, num_envs):
        return Numbers(num_envs + 1, self.options)


class Renamed(OnTensors):
    def make(self, num_envs):
        return TransformedEnv(Numbers(num_envs, self.options), RenameTransform(["observation"], ["pixels"]))


class Nothing(OnTensors):
    def make(self, num_envs):
        return None


def no_source(options: Options):
    return "a text"


class Recall(MemoryTask):
    """Pays for the first observation at each step."""

    def __init__(self, num_envs, values=2, max_steps=None, device="cpu"):
        super().__init__(num_envs, Categorical(values + 1, shape=(num_envs,), device=device), values, max_steps, device)
        self.value = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.values = values

    def begin(self, chosen):
        self.value = torch.where(chosen, self.draw(self.values, self.time.shape[0]), self.value)

    def move(self, action):
        return (action == self.value).float(), self.time >= 4

    def observe(self):
        return torch.where(self.time == 0, self.value, self.values)
'''


@pytest.fixture
def train(recurrl_train, tiny, tmp_path):
    """Runs ``recurrl-train`` in a folder with a module of sources."""
    (tmp_path / "mine.py").write_text(MODULE)
    return lambda *overrides: recurrl_train(*tiny, *overrides, "hydra.run.dir=run", cwd=tmp_path)


TRAINED_IN = [
    ("env=mine:OnTensors", "env.size=3", "env.mask=[1]", "policy.previous_action=true", "env.previous_reward=true"),
    ("env=gym", "env.source=memory", "env.id=mine:Recall", "env.kwargs.values=4"),
    pytest.param(("env=mine:OnTensors", "collector=multi_sync", "collector.num_workers=2"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("overrides", TRAINED_IN)
def test_environments_of_torchrl_are_trained_in(overrides, train, tmp_path):
    train(*overrides).succeeded()
    assert summary(tmp_path / "run")["status"] == "completed"


MISTAKES = [
    ("env=mine:TooFew", "must make 1 environments of env.id=TooFew, as one of batch size [1] (got [2])."),
    ("env=gym env.source=memory env.id=mine:Recall env.kwargs.values=x", "=mine:Recall cannot be made: it raised"),
    ("env=mine:Nothing", "as one of batch size [1] (got a NoneType)."),
    ("env=mine:Renamed", "env.observation_keys must name what the environment has: pixels (got observation). Choose"),
    ("env=mine:no_source", "must make a recurrl.envs.Source (got a str). Derive from"),
    ("env=mine:OnTensors env.sise=3", "Unknown configuration key 'env.sise'. Did you mean env.size"),
    ("env=gym env.id=mine:Gym env.xyzzy=3", "An argument of the environment is env.kwargs.xyzzy."),
    ("env=gymnasium.envs.classic_control:CartPoleEnv", "is env=gym env.id=gymnasium.envs.classic_control:CartPoleEnv"),
    ("env=mine:OnTensors env.wrappers=[a.b:C]", 'must be [] with env.source=mine:OnTensors (got ["a.b:C"]).'),
    (
        "env=mine:OnTensors algorithm=grpo algorithm.group_size=2",
        "(got algorithm.group_size=2). Choose an algorithm without groups, such as ppo",
    ),
    ("env=mine:OnTensors env.failure=raises", "(OnTensors), at step 3, raised RuntimeError in step: the simulator"),
    ("env=mine:OnTensors env.failure=hangs collector.timeout_s=0.3", "no response within collector.timeout_s=0.3 s."),
    ("env=gym env.source=memory env.id=mine:Options", "env.id=mine:Options is not a memory task."),
]


@pytest.mark.parametrize(("overrides", "error"), MISTAKES)
def test_mistakes_of_sources_are_error_messages(overrides, error, train):
    outcome = train(*overrides.split())
    assert error in outcome.error, outcome.err
    assert "Traceback" not in outcome.err
