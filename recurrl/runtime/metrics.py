"""Metrics by name, from several parts of a run."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from recurrl.errors import ConfigError

Value = TypeVar("Value")


def floats(metrics: Mapping[str, float]) -> dict[str, float]:
    """Converts metrics to floats, which checkpoints can hold; custom code may also return integers, arrays or tensors.

    Raises:
        ConfigError: a metric is not a number.
    """
    numbers = {}
    for name, value in metrics.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise ConfigError(f"The metric {name} must be a number (got {value!r:.60}).") from error
    return numbers


def means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the parts that have it."""
    values: dict[str, list[float]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(value)
    return {name: sum(each) / len(each) for name, each in values.items()}


def merged(*parts: Mapping[str, Value]) -> dict[str, Value]:
    """Merges the metrics of several parts of a run.

    Raises:
        ConfigError: two parts have a metric of the same name.
    """
    together: dict[str, Value] = {}
    for part in parts:
        if twice := sorted(together.keys() & part.keys()):
            raise ConfigError(f"The metric {', '.join(twice)} is logged by two parts of the run. Rename one of them.")
        together |= part
    return together
