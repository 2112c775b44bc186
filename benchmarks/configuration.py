"""The configuration of a run, from overrides as for training."""

from recurrl.config import TrainConfig
from recurrl.config.composed import typed
from recurrl.runs.overrides import compose
from recurrl.validation import check_config


def configuration(*overrides: str) -> TrainConfig:
    """The checked configuration.

    Raises:
        ConfigError: it is invalid.
    """
    config = typed(compose(overrides))
    check_config(config)
    return config
