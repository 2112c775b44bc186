"""All the rules of a configuration: of its values, and of the environment and the algorithm that it names."""

from __future__ import annotations

from recurrl import envs
from recurrl.config import TrainConfig
from recurrl.validation import check


def check_config(config: TrainConfig) -> None:
    """Rejects what cannot be honoured, before any environment or process is started.

    Raises:
        ConfigError: the message says what was asked, why it can't be, and what to do.
    """
    check(config)
    envs.check(config.env)
    if config.algorithm.members_of_a_group is not None:
        envs.check_rows(config.env, config.steps_per_row)
