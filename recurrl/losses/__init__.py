"""The algorithms: one module each, with ``make_algorithm(config, policy)`` that returns an :class:`Algorithm`."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from tensordict import TensorDictBase
from torch import Tensor

from recurrl.config import AlgorithmConfig, TrainConfig
from recurrl.errors import ConfigError
from recurrl.losses.loss_modules import GRPOLoss, PPOLoss
from recurrl.losses.policy_loss import Losses
from recurrl.policy import Policy

__all__ = ["Algorithm", "GRPOLoss", "Losses", "PPOLoss", "algorithm_names", "check", "make_algorithm"]


class Algorithm(Protocol):
    """The interface of an algorithm to the learner.

    Attributes:
        loss: a module over the policy's own parameters; called with a minibatch, it returns :class:`Losses`.
        keys: the entries of a batch that the loss reads.
    """

    loss: Any
    keys: list[Any]

    def begin_iteration(self, progress: float) -> None:
        """Sets what is on a schedule, at a fraction of the run's frames, while the policy is the one that collected."""

    def prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes what the loss needs into rows ``[N, T]``, and returns what to log of it."""

    def end_iteration(self, kl: float) -> None:
        """Takes note that an iteration's steps were made, with this approximate KL in their last epoch."""

    def state_dict(self) -> dict[str, Any]:
        """The learnt state other than the policy's."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""


def algorithm_names() -> tuple[str, ...]:
    """The algorithms there are."""
    return ("grpo", "ppo")


def check(config: AlgorithmConfig) -> None:
    """Rejects an algorithm there is not.

    Raises:
        ConfigError: with those there are.
    """
    if config.name not in algorithm_names():
        raise ConfigError(f"algorithm={config.name} does not exist. Choose one of: {', '.join(algorithm_names())}.")


def make_algorithm(config: TrainConfig, policy: Policy) -> Algorithm:
    """The configured algorithm, over the policy's own parameters.

    Raises:
        ConfigError: the algorithm is unknown.
    """
    check(config.algorithm)
    algorithm: Algorithm = importlib.import_module(f"{__name__}.{config.algorithm.name}").make_algorithm(config, policy)
    return algorithm
