"""Every option has help, a range or choices, and rejects other values with all of them."""

import math

import pytest
from all_options import OPTIONS
from rejections import error_of

from recurrl.config.composed import check_values

WITHOUT_RANGE = {"algorithm.group_size": "depends on env.num_envs"}
FREE_TEXT = {
    "any entry of an observation": ("algorithm.critic_observation",),
    "a path": ("init_from", "pretrain.folder", "resume"),
    "a path, or a name of code": ("algorithm.teacher",),
    "checked with Ray": ("collector.address",),
    "any registered environment": ("env.id",),
    "patterns": ("env.ids",),
    "checked with torch": ("device", "env.device"),
    "module:function": ("env.launcher",),
    "names of groups": ("env.actor_groups", "env.critic_groups"),
    "names of entries": ("env.observation_keys", "env.action_key", "env.reward_key"),
    "a name": ("logger.project", "logger.id", "logger.group"),
    "names": ("logger.tags",),
    "any package": ("env.packages",),
    "an example's: any beginning of a metric": ("logger.only",),
}
NUMBERS = [option for option in OPTIONS if {int, float} & set(option.kinds)]
RANGES = [option for option in NUMBERS if option.meaning.range is not None]
STRINGS = [option for option in OPTIONS if str in option.kinds and option.field.name not in ("name", "source")]
CHOICES = [option for option in STRINGS if option.meaning.choices]


def is_list(option):
    return "list" in str(option.field.type)


def prefix_of(option):
    return option.key.removesuffix(option.field.name)


def within(of):
    """Numbers at the ends of a range."""
    low = 1e-9 if of.above else of.low
    high = 10**30 if of.high == math.inf else math.nextafter(of.high, 0) if of.below else of.high
    return [low, high]


def beyond(of):
    """Numbers outside of a range, next to its ends and far away."""
    low = of.low if of.above else of.low - 1
    high = of.high if of.below else of.high + 1
    return [low, high, -(10**30), *(() if of.integers else (math.nan, math.inf))]


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_every_option_has_a_help_text(option):
    assert option.meaning.text
    assert not option.meaning.text.endswith(".")


def test_every_number_has_a_range_or_a_reason():
    assert {option.key for option in NUMBERS} - {option.key for option in RANGES} == set(WITHOUT_RANGE)


def test_every_string_has_choices_or_a_reason():
    reasoned = {key for keys in FREE_TEXT.values() for key in keys}
    assert {option.key for option in STRINGS} - {option.key for option in CHOICES} == reasoned


@pytest.mark.parametrize("option", RANGES, ids=str)
def test_a_number_out_of_range_is_rejected_with_the_whole_range(option):
    place = "[0]" if is_list(option) else ""
    for number in beyond(option.meaning.range):
        error = error_of(check_values, option.options([number] if place else number), prefix_of(option))
        assert error == f"{option.key}{place} must be {option.meaning.range.words} (got {number})."


@pytest.mark.parametrize("option", RANGES, ids=str)
def test_the_ends_of_a_range_and_null_are_accepted(option):
    for number in within(option.meaning.range):
        check_values(option.options([number, number] if is_list(option) else number))
    check_values(option.options([] if is_list(option) else None))


@pytest.mark.parametrize("option", CHOICES, ids=str)
def test_an_unknown_choice_is_rejected_with_all_choices(option):
    error = error_of(check_values, option.options("nonesuch"), prefix_of(option))
    assert error == f"{option.key} must be one of {', '.join(option.meaning.choices)} (got nonesuch)."
    for choice in option.meaning.choices:
        check_values(option.options(choice))


def test_nested_values_in_a_list_are_rejected():
    for nested in ([1], {"a": 1}):
        option = next(option for option in OPTIONS if option.key == "env.mask")
        assert "env.mask[1] must be a plain value (got" in error_of(check_values, option.options([0, nested]), "env.")
