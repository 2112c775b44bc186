"""The losses: one module an algorithm, each with ``make_loss(config, policy)`` that returns TorchRL's loss module."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from recurrl.config import AlgorithmConfig, TrainConfig
from recurrl.errors import ConfigError
from recurrl.policy import ActorCritic


def algorithm_names() -> tuple[str, ...]:
    """The algorithms there are."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def check(config: AlgorithmConfig) -> None:
    """Refuses an algorithm there is not.

    Raises:
        ConfigError: with those there are.
    """
    if config.name not in algorithm_names():
        raise ConfigError(f"algorithm={config.name} does not exist. Choose one of: {', '.join(algorithm_names())}.")


def make_loss(config: TrainConfig, policy: ActorCritic) -> Any:
    """The configured loss module over the policy's own parameters.

    Raises:
        ConfigError: there is no such algorithm.
    """
    check(config.algorithm)
    return importlib.import_module(f"{__name__}.{config.algorithm.name}").make_loss(config.algorithm, policy)
