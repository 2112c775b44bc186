"""The rules of a configuration: one module per subject, each with ``check(config)``.

A rule of one value alone is a row in a table: of :mod:`.ranges` for a number, of :mod:`.choices` for a name. What has
to do with other values, or with the machine, is in the module of its subject.
"""

from __future__ import annotations

from recurrl.config import TrainConfig
from recurrl.validation import (
    algorithm,
    batches,
    choices,
    collector,
    compiler,
    device,
    groups,
    logger,
    normalization,
    ranges,
    recurrence,
    states,
)

# In this order: later checks rely on the existence and range of values that earlier ones checked.
SUBJECTS = (
    *(algorithm, ranges, choices, logger, groups, device, recurrence, compiler, batches, normalization, states),
    collector,
)


def check(config: TrainConfig) -> None:
    """Checks every value and every rule between values, before any environment or process is started.

    Raises:
        ConfigError: a rule is violated; the message says what was asked, why it can't be, and what to do.
    """
    for subject in SUBJECTS:
        subject.check(config)
