"""Every option of the package and of the examples has help, a range or choices, and rejects other values with them."""

import importlib
import math
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
from rejections import error_of

from recurrl.config import TrainConfig
from recurrl.config.composed import check_values
from recurrl.config.options import meaning_of
from recurrl.config.plugins import GROUPS, PACKAGED_OPTIONS, base_options

EXAMPLES = Path(__file__).parents[2] / "examples" / "extending"


class Option(NamedTuple):
    """A field of a dataclass of options."""

    cls: type
    field: Field
    prefix: str
    kinds: set
    """The types of its values, or of the entries of its lists."""

    @property
    def key(self):
        return self.prefix + self.field.name

    @property
    def meaning(self):
        return meaning_of(self.field)

    def __str__(self):
        return f"{self.cls.__name__}.{self.field.name}"

    def checked(self, value):
        """Checks a dataclass with this value and no others."""
        made = object.__new__(self.cls)
        for field in fields(self.cls):
            setattr(made, field.name, value if field.name == self.field.name else None)
        check_values(made, self.prefix)


def classes():
    """All dataclasses of options, with the prefixes of their keys."""
    yield "", TrainConfig
    yield from ((f"{name}.", kind) for name, kind in get_type_hints(TrainConfig).items() if is_dataclass(kind))
    modules = [importlib.import_module(f"my_package.{path.stem}") for path in sorted(EXAMPLES.glob("my_package/*.py"))]
    of_examples = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    for group in GROUPS:
        own = [cls for cls in of_examples if "my_package" in cls.__module__ and issubclass(cls, base_options(group))]
        yield from ((f"{group}.", options) for options in (*PACKAGED_OPTIONS[group].values(), *own))


def kinds_in(hint):
    if get_origin(hint) in (Union, UnionType):
        return set().union(*map(kinds_in, get_args(hint)))
    return set(get_args(hint)) if get_origin(hint) is list else {hint}


OPTIONS = [
    Option(cls, field, prefix, kinds_in(get_type_hints(cls)[field.name]))
    for prefix, cls in classes()
    for field in fields(cls)
    if not is_dataclass(get_type_hints(cls)[field.name])
]
WITHOUT_CHOICES = {
    *("init_from", "pretrain.folder", "resume", "algorithm.teacher"),  # paths, or names of code
    *("env.id", "env.ids", "env.packages", "env.launcher"),  # registered environments, patterns of them, and code
    *("env.observation_keys", "env.action_key", "env.reward_key", "env.actor_groups", "env.critic_groups"),
    *("device", "env.device", "collector.address"),  # checked with torch, and with Ray
    "algorithm.critic_observation",  # any entry of an observation
    *("logger.project", "logger.id", "logger.group", "logger.tags"),  # names
    "logger.only",  # an example's: any beginning of a metric
}
NUMBERS = [option for option in OPTIONS if {int, float} & option.kinds]
RANGES = [option for option in NUMBERS if option.meaning.range is not None]
STRINGS = [option for option in OPTIONS if str in option.kinds and option.field.name not in ("name", "source")]
CHOICES = [option for option in STRINGS if option.meaning.choices]


def test_every_option_has_a_help_text_without_a_full_stop():
    texts = {str(option): option.meaning.text for option in OPTIONS}
    assert [option for option, text in texts.items() if not text or text.endswith(".")] == []


def test_every_number_has_a_range_and_every_string_has_choices_or_there_is_a_reason():
    # Which sizes of a group are possible depends on env.num_envs.
    assert {option.key for option in NUMBERS} - {option.key for option in RANGES} == {"algorithm.group_size"}
    assert {option.key for option in STRINGS} - {option.key for option in CHOICES} == WITHOUT_CHOICES


@pytest.mark.parametrize("option", RANGES, ids=str)
def test_a_number_out_of_range_is_rejected_with_the_whole_range_and_its_ends_and_null_are_accepted(option):
    of, is_list = option.meaning.range, "list" in str(option.field.type)
    outside = [of.low if of.above else of.low - 1, of.high if of.below else of.high + 1, -(10**30)]
    for number in outside if of.integers else [*outside, math.nan, math.inf]:
        error = error_of(option.checked, [number] if is_list else number)
        assert error == f"{option.key}{'[0]' if is_list else ''} must be {of.words} (got {number})."
    lowest = 1e-9 if of.above else of.low
    highest = 10**30 if of.high == math.inf else math.nextafter(of.high, 0) if of.below else of.high
    for number in (lowest, highest):
        option.checked([number, number] if is_list else number)
    option.checked([] if is_list else None)


@pytest.mark.parametrize("option", CHOICES, ids=str)
def test_an_unknown_choice_is_rejected_with_all_choices(option):
    error = error_of(option.checked, "nonesuch")
    assert error == f"{option.key} must be one of {', '.join(option.meaning.choices)} (got nonesuch)."
    for choice in option.meaning.choices:
        option.checked(choice)


@pytest.mark.parametrize("nested", [[1], {"a": 1}])
def test_nested_values_in_a_list_are_rejected(nested):
    option = next(option for option in OPTIONS if option.key == "env.mask")
    assert "env.mask[1] must be a plain value (got" in error_of(option.checked, [0, nested])
