"""A task that needs memory, in every kind of observation and of action: remember two bits, and act on them.

The first observation of an episode shows the bits, no later one does. From the second step on, each of the ``delay``
steps gives 1 / delay for what the bits ask for: the best return is 1, and that of a policy without memory is at most
:data:`WITHOUT_MEMORY`.
"""

from typing import ClassVar

import gymnasium
import numpy as np
import torch
from counting_env import Counting
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode

CUE = "recurrl-test/Cue-v0"

OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
    "small_image": spaces.Box(0, 255, (8, 8), np.uint8),
    "discrete": spaces.Discrete(5),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "binary": spaces.MultiBinary(3),
    "dict": spaces.Dict(
        {"state": spaces.Box(-1, 1, (), np.float32), "more": spaces.Dict({"symbol": spaces.Discrete(3)})}
    ),
}
ACTIONS = {
    "discrete": spaces.Discrete(4),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "binary": spaces.MultiBinary(2),
    "bounded": spaces.Box(np.array([0, -4], np.float32), np.array([2, 8], np.float32)),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "dict": spaces.Dict(
        {"move": spaces.Discrete(2), "more": spaces.Dict({"aim": spaces.Box(-1, 1, (1,), np.float32)})}
    ),
}
WITHOUT_MEMORY = {"discrete": 0.25} | dict.fromkeys(("multi_discrete", "binary", "bounded", "unbounded", "dict"), 0.5)


class Cue(Counting):
    """The task.

    Args:
        observation: a key of :data:`OBSERVATIONS`.
        action: a key of :data:`ACTIONS`.
        delay: steps after the first.
    """

    def __init__(self, observation="vector", action="discrete", delay=2):
        self.kinds, self.delay, self.length = (observation, action), delay, delay + 1
        self.observation_space, self.action_space = OBSERVATIONS[observation], ACTIONS[action]

    def observation(self):
        if self.steps > 0:
            return _picture(self.kinds[0], None, None)
        self.bits = self.np_random.integers(2, size=2)
        return _picture(self.kinds[0], *self.bits)

    def reward(self, action):
        assert self.action_space.contains(action), (action, self.action_space)
        return _score(self.kinds[1], action, self.bits) / self.delay if self.steps > 1 else 0.0


def _picture(kind, a, b):
    signs = [0.0 if bit is None else 2.0 * bit - 1.0 for bit in (a, b)]
    shown = a is not None and b is not None
    if kind == "vector":
        return np.array([*signs, 0.5], np.float32)
    if kind in ("image", "small_image"):
        size = OBSERVATIONS[kind].shape[0]
        image = np.zeros(OBSERVATIONS[kind].shape, np.uint8)
        if shown:
            image[size // 2 * a :][: size // 2, size // 2 * b :][:, : size // 2] = 255
        return image
    if kind == "discrete":
        return np.int64(2 * a + b if shown else 4)
    if kind == "multi_discrete":
        return np.array([a, b + 1] if shown else [2, 0], np.int64)
    if kind == "binary":
        return np.array([a, b, 1] if shown else [0, 0, 0], np.int8)
    return {"state": np.array(signs[0], np.float32), "more": {"symbol": np.int64(b if shown else 2)}}


def _score(kind, action, bits):
    a, b = bits
    if kind == "discrete":
        return float(action == 2 * a + b)
    if kind in ("multi_discrete", "binary"):
        return float(np.mean(action == bits))
    if kind == "dict":
        return (float(action["move"] == a) + _near(action["more"]["aim"][0], b)) / 2
    if kind == "bounded":
        action = (action - np.array([0, -4])) / np.array([2, 12]) * 2 - 1
    return float(np.mean([_near(value, bit) for value, bit in zip(action, bits, strict=True)]))


def _near(value, bit):
    """1 at ±½, falling to 0 at a distance of 1."""
    return max(0.0, 1.0 - abs(float(value) - (bit - 0.5)))


def still(seen):
    """A teacher for the T-maze that goes nowhere."""
    return torch.zeros(len(seen["privileged"]), dtype=torch.long)


class Masked(Counting):
    """Allows a random half of the choices at each step, and none after the last; rejects to do what it did not allow.

    Args:
        mask_in: ``observation`` or ``info``.
        action: ``discrete`` or ``multi_discrete``.
        nothing_at: the step at which nothing is allowed, by mistake.
        length: steps of an episode.
    """

    SIZES: ClassVar = {"discrete": [6], "multi_discrete": [2, 4]}

    def __init__(self, mask_in, action, nothing_at=None, length=5):
        self.mask_in, self.nothing_at, self.length, self.sizes = mask_in, nothing_at, length, self.SIZES[action]
        self.action_space = spaces.Discrete(6) if action == "discrete" else spaces.MultiDiscrete(self.sizes)
        shown = spaces.Box(-1, 1, (2,), np.float32)
        mask = spaces.Box(0, 1, (6,), np.int8)
        in_observation = mask_in == "observation"
        self.observation_space = spaces.Dict({"seen": shown, "action_mask": mask}) if in_observation else shown

    def step(self, action):
        allowed = np.split(self.mask, np.cumsum(self.sizes)[:-1])
        assert all(part[choice] for part, choice in zip(allowed, np.atleast_1d(action), strict=True))
        return super().step(action)

    def observation(self):
        halves = [self.np_random.permutation(size) < size // 2 for size in self.sizes]
        nothing = self.steps in (self.length, self.nothing_at)
        self.mask = np.zeros(6, np.int8) if nothing else np.concatenate(halves).astype(np.int8)
        seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"seen": seen, "action_mask": self.mask} if self.mask_in == "observation" else seen

    def info(self):
        return {"action_mask": self.mask} if self.mask_in == "info" else {}


class VectorCartPole(CartPoleVectorEnv):
    """Gymnasium's vector CartPole with resets on request; the original supports only NEXT_STEP autoreset."""

    metadata = CartPoleVectorEnv.metadata | {"autoreset_mode": AutoresetMode.DISABLED}

    def reset(self, *, seed=None, options=None):
        if options is None or "reset_mask" not in options:
            return super().reset(seed=seed, options=options)
        mask, state, steps = options["reset_mask"], self.state, self.steps
        _, info = super().reset(seed=seed)
        self.state, self.steps = np.where(mask, self.state, state), np.where(mask, self.steps, steps)
        return self.state.T.astype(np.float32), info

    def step(self, action):
        self.prev_done[...] = False
        return super().step(action)


MASKED = "recurrl-test/Masked-v0"
CARTPOLE = ("env=gym", "env.packages=[tasks]", "env.id=recurrl-test/CartPole-v1", "env.mask=[1,3]")
VECTOR = ("env=gym", "env.id=tasks:VectorCartPole", "env.mask=[1,3]")
"""CartPole without velocities, as single environments and as a vector environment."""
PREVIOUS = ("policy.previous_action=true", "env.previous_reward=true")
"""What a policy may see besides, of any environment."""
FROM_INFO = "env.action_mask_from_info=true"
SQUASHED = (*PREVIOUS, "policy.bounded_action=tanh")
KINDS = {
    **{f"sees {kind}": (CUE, (), {"observation": kind}) for kind in OBSERVATIONS},
    **{f"does {kind}": (CUE, PREVIOUS, {"action": kind}) for kind in ACTIONS},
    **{f"does {kind}, squashed": (CUE, SQUASHED, {"action": kind}) for kind in ("bounded", "dict")},
}
"""Every kind of observation and of action: the environment's id, overrides, and the environment's arguments."""
MASKED_KINDS = {
    f"{kind} masked in {where}": (MASKED, (*options, *PREVIOUS), {"mask_in": where, "action": kind})
    for where, options in (("info", (FROM_INFO,)), ("observation", ()))
    for kind in Masked.SIZES
}
"""The same with masks of actions."""

gymnasium.register(CUE, entry_point=Cue)
gymnasium.register(MASKED, entry_point=Masked)
gymnasium.register("recurrl-test/CartPole-v1", entry_point=CartPoleEnv, max_episode_steps=500)
