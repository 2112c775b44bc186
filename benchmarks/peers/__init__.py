"""The training loops that ``benchmark.py train`` compares: one module each, run in separate processes.

A module has ``make(task)``, which returns a :class:`Loop`. Because memory is compared too, peers import nothing of
recurrl except :mod:`recurrl.losses.schedule`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

HIDDEN = (1, 3)
"""The velocities of CartPole-v1."""
VISIBLE = (0, 2)
OBSERVATION_SIZE, ACTIONS, LONGEST_EPISODE = 2, 2, 500
NEEDS = {"sb3_contrib": "sb3-contrib"}
"""Package to install for loops that recurrl's dependencies do not include."""
CELLS = {"recurrl": ("gru", "lstm"), "sb3_contrib": ("lstm",), "torchrl": ("gru", "lstm")}
"""The cells compared for each loop."""


def not_installed(loops: Iterable[str]) -> list[str]:
    """The loops whose packages are missing; reports on standard error what to install."""
    missing = [loop for loop in loops if loop in NEEDS and importlib.util.find_spec(loop) is None]
    for loop in missing:
        sys.stderr.write(f"Skipping {loop}, which is not installed. To include it: pip install {NEEDS[loop]}\n")
    return missing


@dataclass(frozen=True)
class Task:
    """Velocity-masked CartPole-v1, the network and the hyperparameters, shared by all loops.

    The network is a linear layer with tanh, a recurrent cell, and linear actor and critic heads.

    Attributes:
        envs: number of environments.
        steps: steps per environment and iteration.
        minibatches: gradient steps per epoch, each on whole rows.
        hidden: size of the layer and of the cell.
        lr: initial learning rate.
        lr_final_fraction: fraction of it reached after ``total_frames``, by linear decay.
        clip_final_fraction: the same for the clip range.
        total_frames: length of the schedules; None if they are constant.
        reward_scale: factor applied to rewards.
        normalize: normalise observations by running statistics, if the loop supports it.
        normalize_reward: normalise rewards by the standard deviation of their discounted sum.
    """

    cell: str
    envs: int
    steps: int
    epochs: int
    minibatches: int
    hidden: int
    lr: float
    gamma: float
    lmbda: float
    clip: float
    seed: int
    lr_final_fraction: float = 1.0
    clip_final_fraction: float = 1.0
    total_frames: int | None = None
    reward_scale: float = 1.0
    normalize: bool = False
    normalize_reward: bool = False

    @property
    def frames(self) -> int:
        """Frames per iteration."""
        return self.envs * self.steps


class Loop(Protocol):
    """A training loop, driven half an iteration at a time."""

    def collect(self) -> None:
        """Steps the environments for an iteration's frames."""
        ...

    def learn(self) -> None:
        """Trains on the collected frames."""
        ...

    def evaluate(self, episodes: int) -> float:
        """Mean unscaled return over this many episodes with deterministic actions."""
        ...


def masked_cartpole(reward_scale: float = 1.0) -> Any:
    """One environment, built from Gymnasium's wrappers."""
    import gymnasium
    import numpy as np

    visible = list(VISIBLE)
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    assert isinstance(env.observation_space, gymnasium.spaces.Box)
    space = gymnasium.spaces.Box(
        env.observation_space.low[visible], env.observation_space.high[visible], dtype=np.float32
    )
    env = gymnasium.wrappers.TransformObservation(env, lambda observation: observation[visible], space)
    return (
        env
        if reward_scale == 1
        else gymnasium.wrappers.TransformReward(env, lambda reward: reward_scale * float(reward))
    )
