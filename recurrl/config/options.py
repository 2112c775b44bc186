"""Fields of options: what a key of the configuration means and which values it takes, said once.

The schema, its validation, ``--help`` and the documentation are all made from these fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from typing import Any, NamedTuple

from recurrl.errors import require


class Range(NamedTuple):
    """The numbers that a key takes.

    Attributes:
        words: the range in words, which follow "Give" in an error message.
        holds: true for the numbers within it.
    """

    words: str
    holds: Callable[[float], bool]


def _count(most: int) -> Range:
    return Range(f"an integer from 1 to {most:_}", lambda number: 1 <= number <= most)


def _from_zero(most: int) -> Range:
    return Range(f"a number from 0 to {most:_}", lambda number: 0 <= number <= most)


def _above_zero(most: int) -> Range:
    return Range(f"a number above 0 and at most {most:_}", lambda number: 0 < number <= most)


STEPS = _count(10**12)
COPIES = _count(2**16)
FEATURES = _count(2**16)
LAYERS = _count(2**8)
WORKERS = _count(2**10)
"""Larger numbers are typos, and would only show once memory or threads run out."""
RATE = _above_zero(1)
SCALE = _above_zero(10**6)
WEIGHT = _from_zero(10**6)
"""Beyond these, weights, losses or actions soon become NaN or Inf."""
SECONDS = _above_zero(10**6)
FRACTION = _from_zero(1)
BELOW_ONE = Range("a number above 0 and below 1", lambda number: 0 < number < 1)
POSITIVE = Range("a finite number above 0", lambda number: 0 < number < math.inf)
SEED = Range(f"an integer from 0 to {2**31 - 1:_}", lambda number: 0 <= number < 2**31)


class Meaning(NamedTuple):
    """What is known of a field of options.

    Attributes:
        text: what it sets, for ``--help`` and the documentation.
        range: the numbers it takes; of a list, each of its entries.
        choices: the names it takes.
        removed: names it took once, with what to give instead.
    """

    text: str = ""
    range: Range | None = None
    choices: Sequence[str] = ()
    removed: Mapping[str, str] = {}


def option(
    text: str,
    range: Range | None = None,  # noqa: A002
    choices: Sequence[str] = (),
    removed: Mapping[str, str] | None = None,
    default: Any = MISSING,
) -> Any:
    """A field of an options dataclass.

    Args:
        text: what it sets, in a line or two, without its type.
        range: the numbers it takes, such as :data:`FRACTION`; of a list, each of its entries.
        choices: the names it takes, for a string.
        removed: names it took once, with what to give instead.
        default: the value where no yaml gives one. The package's own values are in ``configs/``.
    """
    meaning = Meaning(text, range, choices, removed or {})
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), kw_only=True, metadata={"meaning": meaning})
    return field(default=default, kw_only=True, metadata={"meaning": meaning})


def meaning_of(of: Field[Any]) -> Meaning:
    """What :func:`option` says of a field; empty for a field declared without it."""
    found: Meaning = of.metadata.get("meaning", Meaning())
    return found


def check_values(options: Any, prefix: str = "") -> None:
    """Rejects values out of range, and names that are not among a key's choices.

    Args:
        options: a dataclass; those within it are checked too.
        prefix: of its keys, with a dot at its end.

    Raises:
        ConfigError: the value, and the values there are.
    """
    for of in fields(options):
        key, value, meaning = prefix + of.name, getattr(options, of.name), meaning_of(of)
        if is_dataclass(value):
            check_values(value, f"{key}.")
        elif isinstance(value, str):
            _check_choice(key, value, meaning)
        elif meaning.range is not None:
            for name, number in _numbers(key, value):
                require(meaning.range.holds(number), f"{name}={number} is out of range. Give {meaning.range.words}.")


def _check_choice(key: str, value: str, meaning: Meaning) -> None:
    if value in meaning.removed:
        require(False, f"{key}={value} was removed. Choose {meaning.removed[value]}.")
    known = not meaning.choices or value in meaning.choices
    require(known, f"{key}={value} does not exist. Choose one of: {', '.join(meaning.choices)}.")


def _numbers(key: str, value: float | list[float] | None) -> Iterator[tuple[str, float]]:
    """The numbers of a key, by name: none for null, each entry of a list."""
    if isinstance(value, list):
        yield from ((f"{key}[{place}]", number) for place, number in enumerate(value))
    elif value is not None:
        yield key, value
