"""The configuration of a run, from overrides as for training."""

from __future__ import annotations

from hydra import compose, initialize_config_module

from recurrl.cli.overrides import prepared
from recurrl.config import TrainConfig
from recurrl.config.composed import typed
from recurrl.validation import check_config


def configuration(*overrides: str) -> TrainConfig:
    """The checked configuration.

    Raises:
        ConfigError: it is invalid.
    """
    with initialize_config_module("recurrl.configs", version_base=None):
        config = typed(compose("train", prepared(overrides)))
    check_config(config)
    return config
