"""What ``benchmark.py train`` compares: one module a training loop, each in a process of its own.

A module has ``make(task)``, which returns a :class:`Loop`. It imports nothing of recurrl but this file and
:mod:`recurrl.schedule`, unless it is recurrl's own: memory is compared too.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

HIDDEN = (1, 3)
"""The velocities of CartPole-v1."""
SEEN = (0, 2)
OBSERVATION_SIZE, ACTIONS, LONGEST_EPISODE = 2, 2, 500
NEEDS = {"sb3_contrib": "sb3-contrib"}
"""What to install for a loop whose package does not come with recurrl."""
CELLS = {"recurrl": ("gru", "lstm"), "sb3_contrib": ("lstm",), "torchrl": ("gru", "lstm")}
"""The loops, and the cells that each of them has and that are compared."""


def not_installed(loops: Iterable[str]) -> list[str]:
    """Those of the loops whose packages are not there; says on standard error what to install."""
    missing = [loop for loop in loops if loop in NEEDS and importlib.util.find_spec(loop) is None]
    for loop in missing:
        sys.stderr.write(f"{loop} is not installed and is left out. To compare with it: pip install {NEEDS[loop]}\n")
    return missing


@dataclass(frozen=True)
class Task:
    """CartPole-v1 without its velocities, the network and the hyperparameters: the same for all.

    The network is a linear layer with tanh, a recurrent cell, and a linear head each for actor and critic.

    Attributes:
        envs: environments.
        steps: of each environment an iteration.
        minibatches: gradient steps an epoch, each on whole rows.
        hidden: size of the layer and of the cell.
        lr: the learning rate at the start.
        lr_final_fraction: what is left of it after ``total_frames``; it falls linearly.
        clip_final_fraction: likewise of the clip range.
        total_frames: of the schedules; None where they are constant.
        reward_scale: rewards are multiplied by it.
        normalize: whether observations are normalised by running statistics, where a loop has a way to.
        normalize_reward: likewise rewards, by the deviation of their discounted sum.
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
        """Frames an iteration."""
        return self.envs * self.steps


class Loop(Protocol):
    """A training loop, half an iteration at a time."""

    def collect(self) -> None:
        """Steps the environments for an iteration's frames."""
        ...

    def learn(self) -> None:
        """Trains on them."""
        ...

    def evaluate(self, episodes: int) -> float:
        """The mean return of so many episodes with the most probable actions, as Gymnasium counts rewards."""
        ...


def masked_cartpole(reward_scale: float = 1.0) -> Any:
    """One environment, by Gymnasium's own means."""
    import gymnasium
    import numpy as np

    seen = list(SEEN)
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    assert isinstance(env.observation_space, gymnasium.spaces.Box)
    space = gymnasium.spaces.Box(env.observation_space.low[seen], env.observation_space.high[seen], dtype=np.float32)
    env = gymnasium.wrappers.TransformObservation(env, lambda observation: observation[seen], space)
    return (
        env
        if reward_scale == 1
        else gymnasium.wrappers.TransformReward(env, lambda reward: reward_scale * float(reward))
    )
