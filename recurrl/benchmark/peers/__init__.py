"""What ``benchmark.py train`` compares: one module a training loop, each in a process of its own.

A module has ``make(task)``, which returns a :class:`Loop`. It imports nothing of recurrl but this file, unless it is
recurrl's own: memory is compared too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

HIDDEN = (1, 3)
"""The velocities of CartPole-v1."""
SEEN = (0, 2)
OBSERVATION_SIZE, ACTIONS = 2, 2
NEEDS = {"sb3_contrib": "sb3-contrib"}
"""What to install for a loop whose package does not come with recurrl."""
CELLS = {"recurrl": ("gru", "lstm"), "sb3_contrib": ("lstm",), "torchrl": ("gru", "lstm")}
"""The loops, and the cells that each of them has and that are compared."""


@dataclass(frozen=True)
class Task:
    """CartPole-v1 without its velocities, the network and the hyperparameters: the same for all.

    The network is a linear layer with tanh, a recurrent cell, and a linear head each for actor and critic.
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


def masked_cartpole(*_: Any) -> Any:
    """One environment, by Gymnasium's own means."""
    import gymnasium
    import numpy as np

    seen = list(SEEN)
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    assert isinstance(env.observation_space, gymnasium.spaces.Box)
    space = gymnasium.spaces.Box(env.observation_space.low[seen], env.observation_space.high[seen], dtype=np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda observation: observation[seen], space)
