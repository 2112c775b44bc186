"""The losses: one module an algorithm, each with ``make_loss(config, policy)`` that returns TorchRL's loss module."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from recurrl.config import TrainConfig
from recurrl.errors import ConfigError
from recurrl.policy import ActorCritic


def algorithm_names() -> tuple[str, ...]:
    """The algorithms there are."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def make_loss(config: TrainConfig, policy: ActorCritic) -> Any:
    """The configured loss module over the policy's own parameters.

    Raises:
        ConfigError: there is no such algorithm.
    """
    name = config.algorithm.name
    if name not in algorithm_names():
        raise ConfigError(f"algorithm={name} does not exist. Choose one of: {', '.join(algorithm_names())}.")
    return importlib.import_module(f"{__name__}.{name}").make_loss(config.algorithm, policy)
