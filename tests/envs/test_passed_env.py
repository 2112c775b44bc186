"""Environments that are passed to ``recurrl.train`` as objects, or named by ``module:Name`` and not registered."""

import importlib
import sys
from functools import cache, partial
from operator import attrgetter
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from commands import output_of
from omegaconf import OmegaConf
from rejections import error_of

import recurrl
from recurrl.envs.passed_env import id_of
from recurrl.errors import ConfigError, RunError

MODULE = '''
import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torchrl.envs import GymEnv, SerialEnv


class Plain(gymnasium.Env):
    """Shows the time; an episode has ``size`` steps, each of which gives the action's sum."""

    observation_space, action_space = spaces.Box(0, 9, (2,), np.float32), spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, size=3, render_mode=None):
        self.size, self.render_mode = size, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.show(), {}

    def step(self, action):
        self.time += 1
        return self.show(), float(np.sum(action)), self.time >= self.size, False, {}

    def show(self):
        return np.full(2, self.time, np.float32)


class Masked(Plain):
    observation_space = spaces.Dict(
        {"time": Plain.observation_space, "action_mask": spaces.MultiBinary(2), "note": spaces.Text(9)}
    )

    def show(self):
        return {"time": super().show(), "action_mask": np.array([1, self.time % 2], np.int8), "note": "text"}


class Image(Plain):
    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)

    def show(self):
        return np.full((36, 36, 3), self.time, np.uint8)


class Tuples(Plain):
    observation_space = spaces.Tuple((spaces.Box(0, 9, (2,), np.float32), spaces.Discrete(99)))
    action_space = spaces.Tuple((spaces.Discrete(2), spaces.Box(-2, 2, (1,), np.float32)))

    def show(self):
        return super().show(), self.time

    def step(self, action):
        return super().step(np.concatenate([[action[0]], action[1]]))


class Doubled(gymnasium.ActionWrapper):
    def action(self, action):
        return action


class Many(VectorEnv):
    """The same for ``num_envs``."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}
    single_observation_space, single_action_space = Plain.observation_space, spaces.Box(-3, 1, (1,), np.float32)

    def __init__(self, num_envs, size=3):
        self.num_envs, self.size, self.time = num_envs, size, np.zeros(num_envs)

    def reset(self, *, seed=None, options=None):
        self.time[(options or {}).get("reset_mask", slice(None))] = 0
        return self.show(), {}

    def step(self, actions):
        self.time += 1
        over = self.time >= self.size
        return self.show(), actions[:, 0].astype(np.float64), over, np.zeros_like(over), {}

    def show(self):
        return np.stack([self.time, self.time], 1).astype(np.float32)


def wrapped():
    return Doubled(gymnasium.wrappers.TimeLimit(Plain(9), 3))


def of_torchrl():
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def many_of_torchrl(num_envs):
    return SerialEnv(num_envs, of_torchrl)
'''


@pytest.fixture
def mine(tmp_path, in_tmp_path, monkeypatch):
    """A module of environments in the current folder."""
    (tmp_path / "envs_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("envs_of_mine")
    del sys.modules["envs_of_mine"]


# What is passed, further settings, and what env.id then is.
USERS = {
    "a dict with a mask and text": (attrgetter("Masked"), "", "envs_of_mine:Masked"),
    "a wrapper": (attrgetter("wrapped"), "", "envs_of_mine:wrapped"),
    "a class with arguments": (attrgetter("Plain"), "env.kwargs.size=2 env.mask=[1]", "envs_of_mine:Plain"),
    "a partial function": (lambda mine: partial(mine.Plain, size=2), "", "<Plain>"),
    "an image": (attrgetter("Image"), "", "envs_of_mine:Image"),
    "a tuple": (attrgetter("Tuples"), "", "envs_of_mine:Tuples"),
    "a vector environment": (attrgetter("Many"), "env.mask=[1]", "envs_of_mine:Many"),
    "a function of a vector environment": (lambda mine: lambda num_envs: mine.Many(num_envs), "", "<lambda>"),
    "an environment of TorchRL": (attrgetter("of_torchrl"), "", "envs_of_mine:of_torchrl"),
    "many of TorchRL": (attrgetter("many_of_torchrl"), "", "envs_of_mine:many_of_torchrl"),
    "a lambda": (lambda mine: lambda: mine.Plain(size=2), "policy.previous_action=true", "<lambda>"),
    "a package's id": (lambda _: "CartPole-v1", "", "CartPole-v1"),
}


COLLECTORS = ["collector=single", "collector=multi_sync collector.num_workers=2"]


def small(tiny):
    """Settings for every kind of observation."""
    fast = ["evaluation.memory=false", "evaluation.random=false", "backend=reference"]
    return [each for each in tiny if not each.startswith("encoder.")] + fast


@pytest.mark.parametrize(("passed", "settings", "env_id"), USERS.values(), ids=USERS)
@pytest.mark.slow  # because of the export
@pytest.mark.parametrize("collector", COLLECTORS)
def test_every_users_environment_trains_resumes_evaluates_and_exports(passed, settings, env_id, collector, mine, tiny):
    env = passed(mine)
    arguments = [*small(tiny), "total_frames=32", *settings.split(), *collector.split()]
    run = recurrl.train(arguments, run_dir="run", env=env)
    config = (run.directory / "config.yaml").read_text()
    assert f"\n  id: {env_id}\n" in config
    again = env_id if ":" in env_id else env
    resumed = recurrl.train(f"resume={run.directory} total_frames=64", run_dir=run.directory, env=again)
    assert resumed.summary["frames"] == 64
    agent = recurrl.load(run.directory, env=again)
    returns = agent.evaluate(episodes=3)
    assert len(returns) == 3
    assert returns == resumed.load().evaluate(episodes=3)
    assert repr(agent).startswith(f"Agent({env_id}, {agent.observation_space} to ")
    written = agent.export("exported", formats="pt2")
    assert written["run"] == {"env": env_id}
    assert {path.name for path in Path("exported").iterdir()} == {"policy.pt2", "policy.json"}


def test_what_cannot_be_imported_must_be_passed_again(mine, tiny):
    run = recurrl.train(small(tiny), run_dir="run", env=lambda: mine.Plain(size=2))
    assert run.load().evaluate(episodes=2) == recurrl.load("run", env=partial(mine.Plain, size=2)).evaluate(episodes=2)
    for call in (recurrl.load, lambda run: recurrl.train(f"resume={run} total_frames=96", run_dir=run)):
        with pytest.raises(ConfigError, match=r'env.id=<lambda> was passed .* Pass it again: recurrl.train\("resume='):
            call("run")
    recurrl.train(OmegaConf.load("run/config.yaml"), env=lambda: mine.Plain(size=2))  # the same configuration again


def test_its_arguments_wrappers_and_time_limit_count(mine, tiny):
    limits = {"env.kwargs.size=2": 2, "env.max_episode_steps=1": 1, "": 3}
    for settings, steps in limits.items():
        agent = recurrl.train([*small(tiny), *settings.split()], env=mine.Plain).load()
        env = agent.make_env()
        env.reset(seed=0)
        over = [any(env.step(0)[2:4]) for _ in range(steps)]
        assert over == [False] * (steps - 1) + [True]


@pytest.mark.slow
@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_class_and_an_encoder_of_a_notebook_are_used_by_every_process(collector, tiny, tmp_path):
    """As in a notebook, ``__main__`` is no file."""
    encoder = """
import recurrl
from torch import nn
from recurrl.config import EncoderConfig

class Foo(nn.Linear):
    def __init__(self, options: EncoderConfig, observation):
        super().__init__(*observation.shape, 8)
"""
    settings = [*small(tiny), *collector.split()]
    train = f"run = recurrl.train([*{settings}, 'encoder=__main__:Foo'], env=Plain, run_dir='run')"
    other = "recurrl.train([*%s, 'encoder=__main__:Bar'])"
    shown = f"print(run.load())\ntry:\n    {other}\nexcept ValueError as e: print(e)"
    code = f"{MODULE}{encoder}{train}\n{shown % settings}"
    printed = output_of([sys.executable, "-c", code], cwd=tmp_path, timeout=200)
    assert printed.startswith("Agent(<Plain>, ")
    assert "the module __main__ has no Bar." in printed


def single_of_several(num_envs):
    return gymnasium.make("CartPole-v1")


def vector_of_four():
    return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4)


def takes_size(size): ...


NEEDS = "env must be a class or function that makes environments, or an id "
FLATTEN = "gymnasium.wrappers:FlattenObservation"
REJECTED = {
    "an environment itself": (gymnasium.make("CartPole-v1"), "", f"{NEEDS}(got the environment TimeLimit). A run"),
    "a number": (3, "", f"{NEEDS}(got a int)."),
    "no environment": (dict, "", "env.id=builtins:dict must make an environment of Gymnasium or TorchRL (got a dict)."),
    "one environment": (cache(lambda: gymnasium.make("CartPole-v1")), "", "must make a new environment at each call"),
    "a missing argument": (takes_size, "", ":takes_size requires env.kwargs.size, which is not given."),
    "a single one of several": (single_of_several, "", "takes num_envs but makes a single TimeLimit. Have it make a"),
    "a vector environment of fixed size": (vector_of_four, "", "(got [4]). Have its factory take num_envs, and"),
    "an id twice": ("CartPole-v1", "env=gym env.id=CartPole-v1", "configuration sets env.id and env.source too."),
    "a constant": ("envs_of_mine:np.pi", "", "env.id=envs_of_mine:np.pi must name a class or function (got 3.14159"),
    "no mask of TorchRL": (
        "envs_of_mine:of_torchrl",
        "env.action_mask_from_info=true",
        "must be false (got true): env.id=",
    ),
    "a limit of a vector": ("envs_of_mine:Many", "env.max_episode_steps=2", "env.max_episode_steps works on single"),
    "a wrapper of a vector": ("envs_of_mine:Many", f"env.wrappers=[{FLATTEN}]", "env.wrappers works on single"),
}


@pytest.mark.parametrize(("env", "settings", "error"), REJECTED.values(), ids=REJECTED)
def test_what_makes_no_environments_is_rejected_in_a_sentence(env, settings, error, mine, tiny):
    arguments, kinds = [*small(tiny), *settings.split()], (ConfigError, RunError)
    assert error in error_of(recurrl.train, arguments, env=env, run_dir="run", kind=kinds)


def test_what_cannot_be_sent_to_workers_is_rejected_in_a_sentence(mine, tiny, tmp_path):
    workers = [*tiny, "collector=multi_sync", "collector.num_workers=2"]
    with (tmp_path / "open.txt").open("w") as file, pytest.raises(ConfigError, match="policy must be picklable"):
        recurrl.train(workers, env=lambda: (mine.Plain(), file)[0])


def test_only_what_can_be_imported_is_named(mine):
    class Local:
        def make(self): ...

    named = {np.zeros: "numpy:zeros", mine.Plain: "envs_of_mine:Plain"}
    passed = {Local: "<Local>", Local().make: "<make>", partial(Local): "<Local>", partial(partial(Local)): "<Local>"}
    for each, expected in (named | passed).items():
        assert id_of(each) == expected
