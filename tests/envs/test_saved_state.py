"""Environments that continue in another process, and those that cannot."""

import enum
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from rejections import error_of

from recurrl.envs.saved_state import restore, state_of
from recurrl.errors import UnsavableError
from recurrl.runtime.serialization import from_bytes, to_bytes

IDS = [
    *("CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "Acrobot-v1", "Blackjack-v1", "FrozenLake-v1"),
    *(f"popgym:popgym-{name}Easy-v0" for name in ("RepeatFirst", "RepeatPrevious", "Autoencode")),
]


def made(env_id):
    return gymnasium.make(env_id, disable_env_checker=True, max_episode_steps=70 if "Autoencode" in env_id else 12)


def played(env, actions):
    seen = []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append((np.asarray(observation), reward, terminated, truncated))
        if terminated or truncated:
            seen.append(np.asarray(env.reset()[0]))
    return seen


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("steps", [0, 5, 60])
def test_a_restored_environment_continues_like_the_saved_one(env_id, steps):
    env, other = made(env_id), made(env_id)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(steps + 40)]
    env.reset(seed=3)
    played(env, actions[:steps])
    saved = state_of(env)
    expected = played(env, actions[steps:])
    other.reset(seed=4)
    restore(other, from_bytes(to_bytes(saved)))
    np.testing.assert_equal(played(other, actions[steps:]), expected)


def test_attributes_added_after_saving_are_removed_on_restoring():
    env = made("Pendulum-v1")
    env.reset(seed=0)
    saved = state_of(env)
    env.unwrapped.came_up = 3
    restore(env, saved)
    assert not hasattr(env.unwrapped, "came_up")


def test_constructor_arguments_survive_restoring():
    env, other = (gymnasium.wrappers.TransformReward(made("Pendulum-v1"), lambda reward: 2 * reward) for _ in range(2))
    env.reset(seed=0)
    other.reset(seed=1)
    kept = dict(vars(other)["_saved_kwargs"])
    restore(other, state_of(env))
    assert vars(other)["_saved_kwargs"] == kept
    actions = [env.action_space.sample() for _ in range(30)]
    np.testing.assert_equal(played(other, actions), played(env, actions))


class Simulator:
    """Holds its state outside Python's attributes."""

    __slots__ = ("handle",)


class Simulated(gymnasium.Env):
    def __init__(self, attribute):
        self.attribute = attribute


class Raising:
    """Raises on any access."""

    def __getattribute__(self, name):
        raise RuntimeError("no")


def pretending_to_be(kind):
    """An object that is of this class by ``isinstance`` alone."""
    return type("Pretending", (), {"__slots__": (), "__class__": property(lambda _: kind)})()


class Endless(dict):
    """A subclass of dict."""


class _Nameless(type):
    """As SWIG makes classes: without a module."""

    @property
    def __module__(cls):
        raise AttributeError("__module__")


class Nameless(metaclass=_Nameless):
    __slots__ = ()


UNSAVABLE = {
    "slots": Simulator,
    "an environment in a list": lambda: [Simulated(3)],
    "raises": Raising,
    "pretends to be an array": lambda: pretending_to_be(np.ndarray),
    "pretends to be a space": lambda: pretending_to_be(gymnasium.Space),  # which would not be saved
    "dict of its own kind": Endless,
    "without a module": Nameless,
    "of itself": lambda: (lambda found: found.append(found) or found)([]),
    "large array": lambda: np.zeros(2**27),
    "large tensor": lambda: torch.zeros(2**27),
    "long list": lambda: [0] * 3_000_000,
    "large arrays": lambda: [np.zeros(2**24 + 1) for _ in range(2)],
    "array of objects": lambda: np.array([None]),
    "enumeration of a function": lambda: enum.Enum("Local", "ONE").ONE,
    "view of an array": lambda: (lambda array: [array, array[::-1][:2]])(np.zeros(4)),
    "view of a tensor": lambda: (lambda tensor: [tensor[:2], tensor])(torch.zeros(4)),
    "method of a list": lambda: (lambda items: SimpleNamespace(items=items, log=items.append))([1]),
    "array subclass": lambda: np.ma.zeros(2),
    "object of itself": lambda: (lambda env: vars(env).update(attribute=env) or env)(Simulated(1)),
    "object twice": lambda: Simulated((lambda same: SimpleNamespace(a=same, b=same))(Simulated(1))),
}


REASONS = {
    "slots": f".attribute is a {__name__}.Simulator, which is not a plain value",
    "view of an array": ".attribute[…] shares memory with Simulated.attribute[…]",
    "object of itself": ".attribute.attribute is the same object as Simulated.attribute",
    "method of a list": ".attribute.log is a method of Simulated.attribute.items",
    "an environment in a list": ".attribute holds a Simulated, which is not a plain value",
}


@pytest.mark.parametrize("kind", UNSAVABLE)
def test_an_attribute_that_cannot_be_saved_is_named_whatever_it_raises(kind):
    error = error_of(state_of, Simulated(UNSAVABLE[kind]()), kind=UnsavableError)
    assert f"Simulated{REASONS.get(kind, '.attribute')}" in error


class Phase(enum.Enum):
    SHOWN, HIDDEN = (1, "a"), (2, [])


def test_members_of_enumerations_are_restored():
    env, other = Simulated([Phase.HIDDEN, 3]), Simulated(None)
    env.phases, env.phase = {Phase.HIDDEN: Phase.SHOWN}, Phase.HIDDEN
    restore(other, from_bytes(to_bytes(state_of(env))))
    assert vars(other) == vars(env)
    assert other.phase is Phase.HIDDEN
    saved = state_of(env) | {"phase": ("enum", __name__, "Phase", "GONE")}
    assert error_of(restore, other, saved, kind=UnsavableError) == f"there is no {__name__}.Phase.GONE here"


SHARED = {
    "generator": lambda: np.random.default_rng(1),
    "array": lambda: np.zeros(3),
    "tensor": lambda: torch.zeros(3),
    "list": lambda: [[1], {0: np.zeros(2)}],
}


@pytest.mark.parametrize("kind", SHARED)
def test_attributes_that_share_a_value_still_share_it(kind):
    env, other = Simulated(SHARED[kind]()), Simulated(None)
    env.again, env.inner, env.own = env.attribute, {"deep": [env.attribute]}, SHARED[kind]()
    env.rows, env.rng = [*np.zeros((3, 2))], np.random.default_rng(2)
    restore(other, from_bytes(to_bytes(state_of(env))))
    assert other.again is other.attribute is other.inner["deep"][0] is not other.own
    assert other.rng.random() == env.rng.random()


def test_a_state_is_rejected_by_an_environment_constructed_differently():
    error = error_of(restore, Simulated(None), state_of(Simulated(Simulated(1))), kind=UnsavableError)
    assert error == "Simulated.attribute was a Simulated, and is a NoneType here"
