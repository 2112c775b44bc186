"""The rules of a configuration.

The values of a single key are in its field, see :mod:`recurrl.config.options`. What depends on other values, or on the
machine, is in the module of its subject, each with ``check(config)``.
"""

from __future__ import annotations

from recurrl.config import TrainConfig
from recurrl.config.keys import typed_value
from recurrl.config.options import check_values
from recurrl.config.plugins import GROUPS, check_name, key_of
from recurrl.validation import batches, collector, compiler, device, groups, logger, normalization, recurrence, states

# In this order: later checks rely on the existence and range of values that earlier ones checked.
SUBJECTS = (logger, groups, device, recurrence, compiler, batches, normalization, states, collector)


def check(config: TrainConfig) -> None:
    """Checks every value and every rule between values, before any environment or process is started.

    Raises:
        ConfigError: a rule is violated; the message says what was asked, why it can't be, and what to do.
    """
    check_values(config)
    for group in GROUPS:
        check_name(group, typed_value(config, key_of(group)))
    for subject in SUBJECTS:
        subject.check(config)
