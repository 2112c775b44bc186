"""Environments: marks, primers, masks, and the ways of running several."""

import inspect
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from counting_env import Counting
from gymnasium import spaces
from tensordict import TensorDict
from torchrl.data import Composite
from torchrl.envs.utils import check_env_specs

from recurrl.agent import NamedInterface
from recurrl.envs import make_env
from recurrl.errors import ConfigError
from recurrl.keys import name_of

SHOWN = [
    ("cartpole_no_velocity", (2,)),
    ("pendulum_no_velocity", (2,)),
    ("mountaincar_continuous_no_velocity", (1,)),
    *((name, ()) for name in ("repeat_previous", "repeat_first", "repeat_previous_torch")),
    *((name, (3,)) for name in ("t_maze", "t_maze_active", "memory_chain")),
    ("minigrid", (7, 7, 3)),  # the image, without the mission
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


def in_one(num_envs, cls, observation, action):
    """A vector environment of environments of this class."""
    return gymnasium.vector.SyncVectorEnv([partial(cls, observation, action)] * num_envs, autoreset_mode="SameStep")


BOX, DISCRETE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
RESERVED = {*inspect.signature(Composite).parameters, "batch_size"} - {"args", "kwargs"}
TWICE = spaces.Dict({"a.b": DISCRETE, "a": spaces.Dict({"b": DISCRETE})})


UNSUPPORTED = [
    (spaces.Box(0, 255, (2, 8, 8, 3), np.uint8), DISCRETE, "unsupported observations Box.*: it has 4 dimensions"),
    (spaces.Box(-1, 1, (8, 8, 3)), DISCRETE, "three dimensions but is not an image"),
    (spaces.Discrete(3, dtype=np.uint16), DISCRETE, "its dtype is uint16"),
    (spaces.Text(3), DISCRETE, "unsupported observations Text.*: a Text"),
    *((empty, DISCRETE, "an empty dict") for empty in (spaces.Tuple([]), spaces.Dict())),
    (spaces.Dict({"a": spaces.Dict({"b": spaces.Text(3)})}), DISCRETE, r"Text.* \(entry a.b\): a Text"),
    (spaces.Discrete(3, start=1), DISCRETE, "it does not start at zero"),
    (BOX, spaces.MultiDiscrete([[2, 3]]), "unsupported actions MultiDiscrete.*: it has several dimensions"),
    (BOX, spaces.Box(0, 5, (2,), np.int64), "unsupported actions Box.*: a Box of integers"),
    (spaces.Box(-1, 1, (0,)), DISCRETE, r"Box.*: its shape \(0,\) has no entries"),
    (BOX, spaces.Box(-1, 1, ()), r"it has no dimensions; declare it with shape \(1,\)"),
    *((*pair, "Dict.*: entries have the same name when joined by dots") for pair in ((TWICE, DISCRETE), (BOX, TWICE))),
    *((spaces.Dict({name: BOX}), DISCRETE, f"TorchRL reserves the name '{name}'") for name in RESERVED),
    (BOX, spaces.Dict(a=spaces.Dict(names=BOX)), "TorchRL reserves the name 'names'"),
    (None, DISCRETE, r"must have an observation_space \(got none\). Set it in its constructor"),
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


TEXT = spaces.Text(3)


WITH_TEXT = [
    (spaces.Dict({"at": BOX, "note": TEXT}), "note", ["at"]),
    (spaces.Dict({"at": BOX, "mission": Mission()}), "mission", ["at"]),
    (spaces.Dict({"at": BOX, "in": spaces.Dict({"a": TEXT, "b": spaces.Dict({"c": TEXT})})}), "in.a, in.b.c", ["at"]),
    (spaces.Tuple([BOX, TEXT]), "1", ["0"]),
    (spaces.Dict({"both": spaces.Tuple([spaces.Dict({"note": TEXT}), DISCRETE])}), "both.0.note", ["both.1"]),
]


@pytest.mark.parametrize(("space", "left_out", "kept"), WITH_TEXT)
@pytest.mark.parametrize(("name", "more"), [("Sampled", {}), ("in_one", {"cls": Sampled})])
def test_text_is_left_out_of_an_observation_and_the_log_names_it(space, left_out, kept, name, more, of, caplog):
    config = of(name, observation=space, action=DISCRETE, **more)
    with caplog.at_level("INFO"):
        env = make_env(config, 2, seed=0)
    observed = env.rollout(5, break_when_any_done=False)["observation"]
    assert sorted(map(name_of, observed.keys(include_nested=True, leaves_only=True))) == kept
    assert f"text hidden from the policy: {left_out}" in caplog.text
    assert [entry.name for entry in NamedInterface(config).observed] == [f"observation.{name}" for name in kept]
    env.close()


class Places(Odd):
    """Each entry of its observation holds its own place in the space; the reward is the place of what was pushed."""

    length = 99

    def reward(self, action):
        assert self.action_space.contains(action), action
        return float(spaces.flatten(self.action_space, action).argmax())

    def observation(self):
        size = spaces.flatdim(self.observation_space)
        return spaces.unflatten(self.observation_space, np.arange(size, dtype=np.float32))


ONE = spaces.Box(0, 99, (1,), np.float32)
UNSORTED = {"z": ONE, "a": ONE, "m": ONE}
ORDERED = {
    "arguments": (spaces.Dict(**UNSORTED), ["z", "a", "m"]),
    "pairs": (spaces.Dict(list(UNSORTED.items())), ["z", "a", "m"]),
    "sorted by Gymnasium": (spaces.Dict(UNSORTED), ["a", "m", "z"]),
    "a tuple of twelve": (spaces.Tuple([ONE] * 12), [str(place) for place in range(12)]),
    "tuples in tuples": (spaces.Tuple([ONE, spaces.Dict(b=spaces.Tuple([ONE, ONE]))]), ["0", "1.b.0", "1.b.1"]),
}


@pytest.mark.parametrize(("space", "names"), ORDERED.values(), ids=ORDERED)
@pytest.mark.parametrize(("name", "more"), [("Places", {}), ("in_one", {"cls": Places})])
def test_entries_keep_their_names_in_any_order_and_parts_of_tuples_have_their_places(space, names, name, more, of):
    env = make_env(of(name, observation=space, action=space, **more), 2, seed=0)
    paths, observed = [tuple(each.split(".")) for each in names], env.reset()
    for place, path in enumerate(paths):
        assert observed["observation", *path].tolist() == [[place]] * 2
        action = TensorDict({other: torch.full((2, 1), 1.0 if other == path else -1.0) for other in paths}, [2])
        assert env.step(observed.set("action", action))["next", "reward"].tolist() == [[place]] * 2
    named = NamedInterface(of("Places", observation=space, action=space)).observed
    assert [each.name for each in named] == [f"observation.{each}" for each in names]
    env.close()
