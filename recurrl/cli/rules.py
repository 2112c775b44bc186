"""All the rules of a configuration: of its values, and of the environment and the algorithm that it names."""

from __future__ import annotations

from recurrl import envs, losses
from recurrl.config import TrainConfig
from recurrl.validation import check


def check_config(config: TrainConfig) -> None:
    """Refuses what cannot be honoured, before any environment or process is started.

    Raises:
        ConfigError: with a sentence that says what was asked, why it can't be, and what to do.
    """
    check(config)
    envs.check(config.env)
    if config.algorithm.resets_rows:
        envs.check_rows(config.env, config.steps_per_row)
    losses.check(config.algorithm)
