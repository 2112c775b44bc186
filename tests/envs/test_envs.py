"""Environments: marks, primers, masks, and the ways of running several."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from counting_env import Counting
from gymnasium import spaces
from tensordict import TensorDict
from torchrl.envs.utils import check_env_specs

from recurrl.agent.named_arrays import NamedInterface
from recurrl.envs import make_env
from recurrl.envs.spaces import parts_of
from recurrl.errors import ConfigError
from recurrl.keys import name_of

SHOWN = [
    ("cartpole_no_velocity", (2,)),
    ("pendulum_no_velocity", (2,)),
    ("mountaincar_continuous_no_velocity", (1,)),
    *((name, ()) for name in ("repeat_previous", "repeat_first")),
]


@pytest.mark.parametrize(("env", "shape"), SHOWN)
def test_hidden_entries_are_not_observed_and_specs_match_what_environments_return(env, shape, compose):
    made = make_env(compose(f"env={env}").env, 3, seed=0)
    assert made.reset()["observation"].shape == (3, *shape)
    check_env_specs(made)
    made.close()


class Odd(Counting):
    """An environment with these spaces."""

    def __init__(self, observation, action):
        self.observation_space, self.action_space = observation, action


def in_one(cls):
    """A function that makes a vector environment of environments of this class."""

    def make(num_envs, observation, action):
        envs = [partial(cls, observation, action)] * num_envs
        return gymnasium.vector.SyncVectorEnv(envs, autoreset_mode="SameStep")

    return make


BOX, DISCRETE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
TWICE = spaces.Dict({"a.b": DISCRETE, "a": spaces.Dict({"b": DISCRETE})})


UNSUPPORTED = [
    (spaces.Box(0, 255, (2, 8, 8, 3), np.uint8), DISCRETE, "unsupported observations Box.*: it has 4 dimensions"),
    (spaces.Box(-1, 1, (8, 8, 3)), DISCRETE, "three dimensions but is not an image"),
    (spaces.Text(3), DISCRETE, "unsupported observations Text.*: a Text"),
    *((empty, DISCRETE, "an empty dict") for empty in (spaces.Tuple([]), spaces.Dict())),
    (spaces.Dict({"a": spaces.Dict({"b": spaces.Text(3)})}), DISCRETE, r"Text.* \(entry a.b\): a Text"),
    (spaces.Discrete(3, start=1), DISCRETE, "it does not start at zero"),
    (BOX, spaces.Discrete(3, start=1), "it does not start at zero"),
    (BOX, spaces.MultiDiscrete([[2, 3]]), "unsupported actions MultiDiscrete.*: it has several dimensions"),
    (BOX, spaces.Box(0, 5, (2,), np.int64), "unsupported actions Box.*: a Box of integers"),
    (spaces.Box(-1, 1, (0,)), DISCRETE, r"Box.*: its shape \(0,\) has no entries"),
    (BOX, spaces.Box(-1, 1, (0,)), r"its shape \(0,\) has no entries"),
    (BOX, spaces.Box(-1, 1, ()), r"it has no dimensions; declare it with shape \(1,\)"),
    *((*pair, "Dict.*: entries have the same name when joined by dots") for pair in ((TWICE, DISCRETE), (BOX, TWICE))),
    (None, DISCRETE, "has no observation_space. Set one in its constructor"),
    (BOX, spaces.Dict({"a": spaces.Tuple([spaces.Text(3)])}), r"unsupported actions Text.* \(entry a.0\): a Text"),
]


@pytest.mark.parametrize(("observation", "action", "message"), UNSUPPORTED)
def test_spaces_the_policy_cannot_handle_are_rejected(observation, action, message, of):
    with pytest.raises(ConfigError, match=message):
        make_env(of("Odd", observation=observation, action=action), 1, seed=0)


class Mission(spaces.Space):
    """A custom space of text."""

    def __init__(self):
        super().__init__(dtype=str)

    def sample(self, *_, **__):
        return "go"


class Sampled(Odd):
    """Observes anything."""

    length = 2

    def observation(self):
        return self.observation_space.sample()


sampled_in_one = in_one(Sampled)
TEXT = spaces.Text(3)


WITH_TEXT = [
    (spaces.Dict({"at": BOX, "note": TEXT}), "note", ["at"]),
    (spaces.Dict({"at": BOX, "mission": Mission()}), "mission", ["at"]),
    (spaces.Dict({"at": BOX, "in": spaces.Dict({"n": DISCRETE, "note": TEXT})}), "in.note", ["at", "in.n"]),
    (spaces.Dict({"at": BOX, "in": spaces.Dict({"a": TEXT, "b": spaces.Dict({"c": TEXT})})}), "in.a, in.b.c", ["at"]),
    (spaces.Tuple([BOX, TEXT]), "1", ["0"]),
    (spaces.Dict({"both": spaces.Tuple([spaces.Dict({"note": TEXT}), DISCRETE])}), "both.0.note", ["both.1"]),
]


@pytest.mark.parametrize(("space", "left_out", "kept"), WITH_TEXT)
@pytest.mark.parametrize("name", ["Sampled", "sampled_in_one"])
def test_text_is_left_out_of_an_observation_and_the_log_names_it(space, left_out, kept, name, of, caplog):
    config = of(name, observation=space, action=DISCRETE)
    with caplog.at_level("INFO"):
        env = make_env(config, 2, seed=0)
    observed = env.rollout(5, break_when_any_done=False)["observation"]
    assert sorted(map(name_of, observed.keys(include_nested=True, leaves_only=True))) == kept
    assert f"leaves out text: {left_out}" in caplog.text
    assert [entry.name for entry in NamedInterface(config).observed] == [f"observation.{name}" for name in kept]
    env.close()


class InTuples(Odd):
    """Observes a tuple, and takes actions in tuples."""

    def reward(self, action):
        assert self.action_space.contains(action), action
        return float(action[1]["push"][0][0])

    def observation(self):
        return np.float32([1, 2, 3]), {"inner": (np.int64(1), np.float32([4, 5, 6]))}


def test_the_parts_of_tuples_are_named_by_their_places(of):
    observation = spaces.Tuple([BOX, spaces.Dict({"inner": spaces.Tuple([DISCRETE, BOX])})])
    push = spaces.Tuple([spaces.Box(0, 4, (1,), np.float32)])
    action = spaces.Tuple([DISCRETE, spaces.Dict({"push": push})])
    env = make_env(of("InTuples", observation=observation, action=action), 2, seed=0)
    start = env.reset()
    assert start["observation", "0"].tolist() == [[1, 2, 3]] * 2
    assert start["observation", "1", "inner", "0"].tolist() == [1, 1]
    assert start["observation", "1", "inner", "1"].tolist() == [[4, 5, 6]] * 2
    action = TensorDict({"0": torch.ones(2, dtype=torch.int64), "1": {"push": {"0": torch.ones(2, 1)}}}, [2])
    assert env.step(start.set("action", action))["next", "reward"].tolist() == [[4.0], [4.0]]


class Places(Odd):
    """Each entry of its observation holds its own place in the space; the reward is the place of what was pushed."""

    length = 99

    def reward(self, action):
        parts = action if isinstance(action, tuple) else [action[name] for name in self.action_space]
        return float(np.argmax([float(part[0]) for part in parts]))

    def observation(self):
        space = self.observation_space
        values = [np.full(1, place, np.float32) for place in range(len(space.spaces))]
        return tuple(values) if isinstance(space, spaces.Tuple) else dict(zip(space.spaces, values, strict=True))


places_in_one = in_one(Places)

ONE = spaces.Box(0, 99, (1,), np.float32)
UNSORTED = {"z": ONE, "a": ONE, "m": ONE}


ORDERED = {
    "arguments": spaces.Dict(**UNSORTED),
    "pairs": spaces.Dict(list(UNSORTED.items())),
    "sorted by Gymnasium": spaces.Dict(UNSORTED),
    "a tuple of twelve": spaces.Tuple([ONE] * 12),
}


@pytest.mark.parametrize("space", ORDERED.values(), ids=ORDERED)
@pytest.mark.parametrize("name", ["Places", "places_in_one"])
def test_entries_keep_their_names_in_any_order(space, name, of):
    entries, env = list(parts_of(space)), make_env(of(name, observation=space, action=space), 2, seed=0)
    observed = env.reset()
    for place, entry in enumerate(entries):
        assert observed["observation", entry].tolist() == [[place]] * 2
        action = {other: torch.full((2, 1), 1.0 if other == entry else -1.0) for other in entries}
        assert env.step(observed.set("action", TensorDict(action, [2])))["next", "reward"].tolist() == [[place]] * 2
    observed = NamedInterface(of("Places", observation=space, action=space)).observed
    assert [each.name for each in observed] == [f"observation.{entry}" for entry in entries]
    env.close()
