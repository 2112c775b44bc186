"""Fields of the options dataclasses: what each key of the configuration means, and which values it takes.

The schema, its validation, ``--help`` and docs/configuration.md are generated from these fields.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, field
from typing import Any, NamedTuple, get_args, get_origin


class Range(NamedTuple):
    """The numbers that a key takes.

    Attributes:
        low: the lower end, which is in the range unless ``above`` is set.
        high: the upper end, which is in the range unless ``below`` is set.
        integers: the numbers are integers.
        above: excludes the lower end.
        below: excludes the upper end.
    """

    low: float
    high: float
    integers: bool = False
    above: bool = False
    below: bool = False

    def holds(self, number: float) -> bool:
        """True for a number within the range; NaN is not."""
        above = number > self.low if self.above else number >= self.low
        below = number < self.high if self.below else number <= self.high
        return above and below and (number % 1 == 0 or not self.integers)

    @property
    def words(self) -> str:
        """The range in words, which follow "must be" in an error message."""
        if self.high == math.inf:
            noun = "an integer" if self.integers else "a finite number"
            return f"{noun} {'above' if self.above else 'from'} {self.low}"
        low = f"above {self.low}" if self.above else f"from {self.low}"
        high = f"below {self.high:_}" if self.below else f"{'at most' if self.above else 'to'} {self.high:_}"
        return f"{'an integer' if self.integers else 'a number'} {low} {'and ' * (self.above or self.below)}{high}"


# Bounds that catch typos before they exhaust memory or threads.
STEPS = Range(1, 10**12, integers=True)
COPIES = FEATURES = Range(1, 2**16, integers=True)
EPISODES = Range(0, 2**16, integers=True)
LAYERS = Range(1, 2**8, integers=True)
WORKERS = Range(1, 2**10, integers=True)

# Beyond these, weights, losses or actions soon become NaN or Inf.
RATE = Range(0, 1, above=True)
SCALE = Range(0, 10**6, above=True)
WEIGHT = Range(0, 10**6)

SECONDS = Range(0, 10**6, above=True)
FRACTION = Range(0, 1)
BELOW_ONE = Range(0, 1, above=True, below=True)
POSITIVE = Range(0, math.inf, above=True, below=True)
INDEX = Range(0, math.inf, integers=True, below=True)
SEED = Range(0, 2**31 - 1, integers=True)


class Condition(NamedTuple):
    """A precondition for an option to have an effect.

    Attributes:
        words: the condition in words, which follow "only with".
        holds: true for a run's configuration that meets it; None if it depends on the environment's spaces, see
            :func:`recurrl.policy.build.conditions_met`.
    """

    words: str
    holds: Callable[[Any], bool] | None = None


CONTINUOUS = Condition("continuous actions")
BOUNDED = Condition("bounded continuous actions")
IMAGES = Condition("images")
NO_IMAGES = Condition("observations other than images")
NUMBERS = Condition("observations of numbers")


class Meaning(NamedTuple):
    """The metadata of a field of options.

    Attributes:
        text: what the option sets, for ``--help`` and the documentation.
        range: the numbers it takes; for a list, the range of each entry.
        choices: the names it takes.
        only_with: what it needs to have an effect.
    """

    text: str = ""
    range: Range | None = None
    choices: Sequence[str] = ()
    only_with: Condition | None = None


def option(
    text: str,
    range: Range | None = None,  # noqa: A002
    choices: Sequence[str] = (),
    only_with: Condition | None = None,
    default: Any = MISSING,
) -> Any:
    """A field of an options dataclass.

    Args:
        text: what the option sets, in a line or two, without its type.
        range: the numbers it takes, such as :data:`FRACTION`; for a list, the range of each entry.
        choices: the names it takes, for a string.
        only_with: what it needs to have an effect; if this is not met, a value that the user sets is an error.
        default: the value if no yaml has one. The package's own values are in ``configs/`` instead.
    """
    text = text if only_with is None else f"{text}; only with {only_with.words}"
    metadata = {"meaning": Meaning(text, range, choices, only_with)}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), kw_only=True, metadata=metadata)
    return field(default=default, kw_only=True, metadata=metadata)


def meaning_of(option: Field[Any]) -> Meaning:
    """The metadata of a field; empty for one declared without :func:`option`."""
    return option.metadata.get("meaning", Meaning())


def words_of(kind: Any, meaning: Meaning) -> str:
    """What an option of a type takes, in words that follow "must be" in an error message.

    Args:
        kind: the annotation of its field.
        meaning: the metadata of its field.
    """
    members = get_args(kind) if type(None) in get_args(kind) else (kind,)
    numbers, null = meaning.range and meaning.range.words, ", or null" * (len(members) > 1)
    if meaning.choices:
        return f"one of {', '.join(meaning.choices)}{null}"
    if get_origin(members[0]) is list:
        return f"a list of: {numbers}{', or text' * (kind == list[Any])}{null}" if numbers else f"a list{null}"
    words = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
    return (numbers or words.get(members[0], "keys and values")) + null
