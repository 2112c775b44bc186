"""The task that all loops train on, and what a loop does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

HIDDEN = (1, 3)
"""The velocities of CartPole-v1."""
VISIBLE = (0, 2)
OBSERVATION_SIZE, ACTIONS, LONGEST_EPISODE = 2, 2, 500


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
    low, high = env.observation_space.low[visible], env.observation_space.high[visible]
    space = gymnasium.spaces.Box(low, high, dtype=np.float32)
    env = gymnasium.wrappers.TransformObservation(env, lambda observation: observation[visible], space)
    if reward_scale == 1:
        return env
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward_scale * float(reward))
