"""The fields of options: the meaning of each key of the configuration, and the values it takes.

The schema, its validation, ``--help`` and docs/configuration.md are made from them.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from typing import Any, NamedTuple

from recurrl.errors import require


class Range(NamedTuple):
    """The numbers that a key takes.

    Attributes:
        low: the lower end.
        high: the upper end.
        integers: the numbers are integers.
        above: without the lower end.
        below: without the upper end.
    """

    low: float
    high: float
    integers: bool = False
    above: bool = False
    below: bool = False

    def holds(self, number: float) -> bool:
        """True for a number within the range; NaN is not."""
        if number in ((self.low,) * self.above + (self.high,) * self.below):
            return False
        return self.low <= number <= self.high

    @property
    def words(self) -> str:
        """The range in words, which follow "Give" in an error message."""
        if self.high == math.inf:
            noun = "an integer" if self.integers else "a finite number"
            return f"{noun} {'above' if self.above else 'from'} {self.low}"
        low = f"above {self.low}" if self.above else f"from {self.low}"
        high = f"below {self.high:_}" if self.below else f"{'at most' if self.above else 'to'} {self.high:_}"
        return f"{'an integer' if self.integers else 'a number'} {low} {'and ' if self.above else ''}{high}"


STEPS = Range(1, 10**12, integers=True)
COPIES = FEATURES = Range(1, 2**16, integers=True)
LAYERS = Range(1, 2**8, integers=True)
WORKERS = Range(1, 2**10, integers=True)
"""Larger numbers are typos, and would only show once memory or threads run out."""
RATE = Range(0, 1, above=True)
SCALE = Range(0, 10**6, above=True)
WEIGHT = Range(0, 10**6)
"""Beyond these, weights, losses or actions soon become NaN or Inf."""
SECONDS = Range(0, 10**6, above=True)
FRACTION = Range(0, 1)
BELOW_ONE = Range(0, 1, above=True, below=True)
POSITIVE = Range(0, math.inf, above=True, below=True)
INDEX = Range(0, math.inf, integers=True, below=True)
SEED = Range(0, 2**31 - 1, integers=True)


class Condition(NamedTuple):
    """What an option needs to have an effect.

    Attributes:
        words: it in words, which follow "only with".
        holds: true for a run's configuration that meets it; None for what the environment's spaces tell, see
            :func:`recurrl.policy.spaces.kinds`.
    """

    words: str
    holds: Callable[[Any], bool] | None = None


CONTINUOUS = Condition("continuous actions")
SINGLE_CONTINUOUS = Condition("continuous actions of a single part")
BOUNDED = Condition("bounded continuous actions")
IMAGES = Condition("images")
NO_IMAGES = Condition("observations other than images")
NUMBERS = Condition("observations of numbers")


class Meaning(NamedTuple):
    """The metadata of a field of options.

    Attributes:
        text: what it sets, for ``--help`` and the documentation.
        range: the numbers it takes; of a list, each of its entries.
        choices: the names it takes.
        removed: names that it no longer takes, with what to give instead.
        only_with: what it needs to have an effect.
    """

    text: str = ""
    range: Range | None = None
    choices: Sequence[str] = ()
    removed: Mapping[str, str] = {}
    only_with: Condition | None = None


def option(
    text: str,
    range: Range | None = None,  # noqa: A002
    choices: Sequence[str] = (),
    removed: Mapping[str, str] | None = None,
    only_with: Condition | None = None,
    default: Any = MISSING,
) -> Any:
    """A field of an options dataclass.

    Args:
        text: what it sets, in a line or two, without its type.
        range: the numbers it takes, such as :data:`FRACTION`; of a list, each of its entries.
        choices: the names it takes, for a string.
        removed: names that it no longer takes, with what to give instead.
        only_with: what it needs to have an effect; without that, a value that the user gave is refused.
        default: the value if no yaml gives one. Those of the package are in ``configs/``.
    """
    text = text if only_with is None else f"{text}; only with {only_with.words}"
    meaning = Meaning(text, range, choices, removed or {}, only_with)
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), kw_only=True, metadata={"meaning": meaning})
    return field(default=default, kw_only=True, metadata={"meaning": meaning})


def meaning_of(of: Field[Any]) -> Meaning:
    """The metadata of a field; empty for one declared without :func:`option`."""
    return of.metadata.get("meaning", Meaning())


def check_values(options: Any, prefix: str = "") -> None:
    """Rejects values out of range, and names that are not among a key's choices.

    Args:
        options: a dataclass; those within it are checked too.
        prefix: of its keys, with a dot at its end.

    Raises:
        ConfigError: with the values that the key takes.
    """
    for key, value, meaning in _values(options, prefix):
        if isinstance(value, str):
            _check_choice(key, value, meaning)
        elif meaning.range is not None:
            for name, number in _numbers(key, value):
                require(meaning.range.holds(number), f"{name}={number} is out of range. Give {meaning.range.words}.")


def check_effects(config: Any, given: Collection[str], kinds: Collection[Condition] | None = None) -> None:
    """Rejects values that the user gave and that have no effect.

    Args:
        config: the run's.
        given: the keys of the values that the user gave.
        kinds: what the environment's spaces have; None to check what the configuration alone tells.

    Raises:
        ConfigError: with what such a value goes with.
    """
    for key, value, meaning in _values(config):
        needed = meaning.only_with
        if needed is None or key not in given or (needed.holds is None) == (kinds is None):
            continue
        name, shown = key if key == "env.name" else key.removesuffix(".name"), json.dumps(value, default=str).strip('"')
        asked = f"{name}={shown} has no effect here: it goes with {needed.words}"
        if kinds is not None:
            require(needed in kinds, f"{asked}, and env.id={config.env.id} has none. Leave it out.")
        elif needed.holds is not None:
            require(needed.holds(config), f"{asked}. Leave it out, or choose {needed.words}.")


def _values(options: Any, prefix: str = "") -> Iterator[tuple[str, Any, Meaning]]:
    """The dotted keys of options, those within them included, with their values and what they mean."""
    for of in fields(options):
        key, value = prefix + of.name, getattr(options, of.name)
        if is_dataclass(value):
            yield from _values(value, f"{key}.")
        else:
            yield key, value, meaning_of(of)


def _check_choice(key: str, value: str, meaning: Meaning) -> None:
    require(value not in meaning.removed, f"{key}={value} was removed. Choose {meaning.removed.get(value)}.")
    known = not meaning.choices or value in meaning.choices
    require(known, f"{key}={value} does not exist. Choose one of: {', '.join(meaning.choices)}.")


def _numbers(key: str, value: float | list[float] | None) -> Iterator[tuple[str, float]]:
    """The numbers of a key, by name: none for null, each entry of a list."""
    if isinstance(value, list):
        yield from ((f"{key}[{place}]", number) for place, number in enumerate(value))
    elif value is not None:
        yield key, value
