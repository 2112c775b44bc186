"""An environment that misbehaves once: each kind of observation and action, failure and place."""

import random
import time
from typing import NamedTuple

import gymnasium
import numpy as np
import tasks
from gymnasium import spaces

EVALUATION_SEED = 1_000_003

FLOATS = spaces.Box(-1, 1, (3,), np.float32)
OBSERVATIONS = {
    **{kind: tasks.OBSERVATIONS[kind] for kind in ("vector", "image", "discrete", "multi_discrete", "binary")},
    "double": spaces.Box(-1, 1, (2,), np.float64),
    "half": spaces.Box(-1, 1, (2,), np.float16),
    "number": spaces.Box(-1, 1, (), np.float32),
    "dict": spaces.Dict({"at": FLOATS, "symbol": spaces.Discrete(3)}),
    "nested": spaces.Dict({"inner": spaces.Dict({"at": FLOATS, "bits": spaces.MultiBinary(2)}), "n": FLOATS}),
    "tuple": spaces.Tuple([FLOATS, spaces.Discrete(3)]),
    "mask": spaces.Dict({"at": FLOATS, "action_mask": spaces.MultiBinary(4)}),
}
ACTIONS = {
    "discrete": spaces.Discrete(4),
    "multi_discrete": spaces.MultiDiscrete([2, 2]),
    "binary": spaces.MultiBinary(2),
    "bounded": spaces.Box(np.float32([-0.3, -4]), np.float32([0.9, 8])),
    "half-bounded": spaces.Box(np.float32([-0.3, -np.inf, 2]), np.float32([np.inf, np.inf, 2])),
    "dict": spaces.Dict({"move": spaces.Discrete(2), "aim": spaces.Box(-1, 1, (1,), np.float32)}),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (1,), np.float32)]),
}


class HostileError(Exception):
    """Raises again when it is printed."""

    def __str__(self):
        raise ValueError("no words")


class Text:
    """Cannot be converted to an array."""

    def __array__(self, *_, **__):
        raise RuntimeError("no array")


NOT_FINITE = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
OF_OBSERVATIONS = ("text", "object", "none", "ragged", "no array", "shape", "empty", "complex")
OF_DICTS = ("missing", "extra", "not a dict")
RAISED = {
    "RuntimeError": RuntimeError("stuck"),
    "KeyError": KeyError(1),
    "hostile": HostileError(),
    "exit": SystemExit(3),
    "StopIteration": StopIteration("no more"),
}
OF_CALLS = (*RAISED, "hang", "too few", "too many", "no tuple", "nothing")
REWARDS = {"nan": np.nan, "inf": np.inf, "huge": 1e300, "none": None, "text": "1", "two": np.ones(2), "complex": 1j}
FLAGS = {"none": None, "text": "no", "two": 2, "nan": np.nan, "float": 1.0, "pair": [True, False]}


class Case(NamedTuple):
    """A run: its observations and actions, the failure, and its place."""

    observation: str
    action: str
    failure: str
    place: str
    on_env_error: str


def failures_of(observation, place):
    """The failures possible with a kind of observation, and at a place."""
    found = [f"observation {name}" for name in OF_OBSERVATIONS]
    if observation in ("discrete", "multi_discrete", "binary"):
        found += ["observation high", "observation low", "observation float"]
    elif observation == "image":
        found += ["observation float"]
    else:
        found += [*(f"observation {name}" for name in NOT_FINITE), "observation bytes"]
    if observation in ("dict", "nested", "tuple", "mask"):
        found += [f"observation {name}" for name in OF_DICTS]
    if observation == "mask":
        found += ["mask nothing", "mask high", "mask shape"]
    found += [f"call {name}" for name in OF_CALLS]
    if place != "reset":
        found += [*(f"reward {name}" for name in REWARDS), *(f"flag {name}" for name in FLAGS)]
    return found


def cases(count, seed=0):
    """Random cases; each kind, failure and place is equally likely."""
    draw = random.Random(seed)
    found = []
    for i in range(count):
        place = ("step", "reset", "evaluation")[i % 3]
        observation = draw.choice([*OBSERVATIONS])
        action = draw.choice(["discrete", "multi_discrete"] if observation == "mask" else [*ACTIONS])
        family = draw.choice(sorted({failure.split()[0] for failure in failures_of(observation, place)}))
        failure = draw.choice([name for name in failures_of(observation, place) if name.startswith(family)])
        on_env_error = draw.choice(["raise", "restart"])
        found.append(Case(observation, action, failure, place, on_env_error))
    return found


def _leaf(space):
    if isinstance(space, spaces.Dict):
        return {name: _leaf(part) for name, part in space.spaces.items()}
    return np.int64(0) if isinstance(space, spaces.Discrete) else np.zeros(space.shape, space.dtype)


def _spoilt(value, failure):
    """An array of the observation, with the failure."""
    if failure in NOT_FINITE:
        return np.full(value.shape, NOT_FINITE[failure], value.dtype)
    shape = np.shape(value)
    replaced = {
        "text": np.full(shape, "a"),
        "object": np.full(shape, None),
        "none": None,
        "ragged": [[1.0], [1.0, 2.0]],
        "no array": Text(),
        "shape": np.zeros((*shape, 2), getattr(value, "dtype", float)),
        "empty": np.zeros((0,), getattr(value, "dtype", float)),
        "complex": np.zeros(shape, complex),
        "high": np.full(shape, 7, np.int64),
        "low": np.full(shape, -1, np.int64),
        "float": np.zeros(shape, np.float32),
        "bytes": np.zeros(shape, np.uint8),
    }
    return replaced[failure]


class Hostile(gymnasium.Env):
    """The first environment of a run, or of its evaluation, has a failure at its third step or the reset before.

    Episodes have two steps, those of evaluation four.
    """

    def __init__(self, observation, action, failure, place):
        self.observation_space, self.action_space = OBSERVATIONS[observation], ACTIONS[action]
        self.kind, self.what, self.place = failure.split(" ", 1)[0], failure.split(" ", 1)[1], place
        self.seed = None
        self.steps = self.time = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = self.seed if seed is None else seed
        self.time = 0
        spoils = self.place == "reset" and self.seed == 0 and self.steps == 2
        return self._returned(spoils, self._show(spoils), {})

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        self.time += 1
        at = {"step": 0, "evaluation": EVALUATION_SEED}.get(self.place)
        spoils = self.seed == at and self.steps == 3
        reward = REWARDS[self.what] if spoils and self.kind == "reward" else 1.0
        ends = self.time == (4 if self.seed == EVALUATION_SEED else 2)
        flag = FLAGS[self.what] if spoils and self.kind == "flag" else ends
        return self._returned(spoils, self._show(spoils), reward, flag, False, {})

    def _returned(self, spoils, *returned):
        if not spoils or self.kind != "call":
            return returned
        if self.what in RAISED:
            raise RAISED[self.what]
        while self.what == "hang":
            time.sleep(0.01)
        replaced = {"too few": returned[:-1], "too many": (*returned, 0), "no tuple": 3, "nothing": None}
        return replaced[self.what]

    def _show(self, spoils):
        if isinstance(self.observation_space, spaces.Tuple):
            shown = self._spoilt(dict(zip(("at", "more"), map(_leaf, self.observation_space), strict=True)), spoils)
            return tuple(shown.values()) if isinstance(shown, dict) else shown
        return self._spoilt(_leaf(self.observation_space), spoils)

    def _spoilt(self, shown, spoils):
        if "action_mask" in shown if isinstance(shown, dict) else False:
            shown["action_mask"][::2] = 1
        if not spoils or self.kind not in ("observation", "mask"):
            return shown
        if self.kind == "mask":
            masks = {"nothing": np.zeros(4, np.int8), "high": np.full(4, 2), "shape": np.ones(3, np.int8)}
            return shown | {"action_mask": masks[self.what]}
        if self.what in OF_DICTS:
            part = shown.get("inner", shown)
            if self.what == "extra":
                part["extra"] = 0
            else:
                del part["at"]
            return shown if self.what != "not a dict" else [0.0]
        if not isinstance(shown, dict):
            return _spoilt(shown, self.what)
        part = shown.get("inner", shown)
        part["at"] = _spoilt(part["at"], self.what)
        return shown


gymnasium.register("Hostile-v0", entry_point=Hostile)
