"""The task that all loops train on, and what a loop does."""

from dataclasses import dataclass
from typing import Any, Protocol

HIDDEN = (1, 3)
"""The velocities of CartPole-v1."""
VISIBLE = (0, 2)
OBSERVATION_SIZE, ACTIONS = 2, 2


@dataclass(frozen=True)
class Task:
    """Velocity-masked CartPole-v1, the network and the hyperparameters, shared by all loops.

    The network is a linear layer with tanh, a recurrent cell, and linear actor and critic heads.

    Attributes:
        envs: number of environments.
        steps: steps per environment and iteration.
        minibatches: gradient steps per epoch, each on whole rows.
        hidden: size of the layer and of the cell.
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


def masked_cartpole() -> Any:
    """One environment, built from Gymnasium's wrappers."""
    import gymnasium
    import numpy as np

    visible = list(VISIBLE)
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    assert isinstance(env.observation_space, gymnasium.spaces.Box)
    low, high = env.observation_space.low[visible], env.observation_space.high[visible]
    space = gymnasium.spaces.Box(low, high, dtype=np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda observation: observation[visible], space)
