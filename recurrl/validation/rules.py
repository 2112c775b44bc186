"""All rules of a configuration: of its values, and of the environment and the logger that it names."""

from __future__ import annotations

from recurrl import envs
from recurrl.config import TrainConfig
from recurrl.config.keys import typed_value
from recurrl.config.options import check_values
from recurrl.config.plugins import GROUPS, check_name, factory, key_of
from recurrl.validation import batches, collector, compiler, device, groups, normalization, recurrence, states

# In this order: later checks rely on the existence and range of values that earlier ones checked.
SUBJECTS = (groups, device, recurrence, compiler, batches, normalization, states, collector)


def check_config(config: TrainConfig) -> None:
    """Checks every value and every rule between values, before any environment or process is started.

    Raises:
        ConfigError: a rule is violated; the message says what was asked, why it can't be, and what to do.
    """
    check_values(config)
    for group in GROUPS:
        check_name(group, typed_value(config, key_of(group)))
    factory("logger", config.logger.name)  # imports the package that it needs
    for subject in SUBJECTS:
        subject.check(config)
    envs.check(config.env)
    if config.algorithm.members_of_a_group is not None:
        envs.check_rows(config.env, config.steps_per_row)
