"""Metrics of the parts of an iteration."""

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from recurrl.errors import ConfigError
from recurrl.losses.deferred import Deferred, of_minibatches

Value = TypeVar("Value")
Step = Mapping[str, Tensor | Deferred]
"""The metrics of a gradient step."""

SKIPPED = "optim/skipped_steps"
WINDOW = 100
"""The number of episodes that the means and deviations of returns and lengths are taken over."""


def merged(*parts: Mapping[str, Value]) -> dict[str, Value]:
    """The metrics of several parts together.

    Raises:
        ConfigError: two parts have a metric of the same name.
    """
    together = {name: value for part in parts for name, value in part.items()}
    if len(together) < sum(map(len, parts)):
        twice = sorted(name for name, count in Counter(name for part in parts for name in part).items() if count > 1)
        raise ConfigError(f"The metric {', '.join(twice)} is logged by two parts of the run. Rename one of them.")
    return together


def means(steps: list[Step]) -> dict[str, float]:
    """The mean metrics of gradient steps without the skipped ones, and the number of skipped ones.

    Shape legend: S steps, M metrics.
    """
    names = list(steps[0])
    table_SM = torch.stack([of_minibatches([step[name] for step in steps]) for name in names], 1)
    skipped_S1 = table_SM[:, names.index(SKIPPED)].unsqueeze(1)
    skipped = float(skipped_S1.sum())
    sums_M = table_SM.masked_fill(skipped_S1 > 0, 0.0).sum(0)
    averages = (sums_M / max(len(steps) - skipped, 1)).tolist()
    return {**dict(zip(names, averages, strict=True)), SKIPPED: skipped}
