"""Each number has a range: what is within it is fine, and what is not is refused with the whole of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from functools import reduce
from typing import NamedTuple, get_args, get_type_hints

import pytest

from recurrl.config import TrainConfig
from recurrl.config.keys import key_paths
from recurrl.errors import ConfigError
from recurrl.validation import ranges

ELSEWHERE = {
    "algorithm.group_size": "it divides the environments",
    "env.mask": "it is of the environment's observation",
    "recompute.chunk_len": "its backend refuses it",
}
"""Numbers whose rule is not a range, and why."""


class Case(NamedTuple):
    """A range: its keys, numbers at its ends, and numbers beyond them."""

    keys: tuple[str, ...]
    within: tuple[float, ...]
    beyond: tuple[float, ...]


def algorithms(*keys: str) -> tuple[str, ...]:
    return tuple(f"algorithm.{key}" for key in keys)


CASES = {
    "an integer from 0 to 2_147_483_647": Case(("seed",), (0, 2**31 - 1), (-1, 2**31)),
    "an integer from 1 to 256": Case(("cell.num_layers",), (1, 2**8), (0, 2**8 + 1)),
    "an integer from 1 to 1_024": Case(("num_threads", "collector.num_workers"), (1, 2**10), (0, 2**10 + 1)),
    "an integer from 1 to 65_536": Case(
        ("env.num_envs", "evaluation.episodes", "cell.hidden_size"), (1, 2**16), (0, -1, 2**16 + 1, 10**30)
    ),
    "an integer from 1 to 1_000_000_000_000": Case(
        (
            *("total_frames", "frames_per_batch", "slice_len", "burn_in_len", "epochs", "minibatch_slices"),
            *("max_skipped_steps", "env.max_episode_steps", "checkpoint.every_frames", "checkpoint.keep_last"),
            *("evaluation.every_frames", "algorithm.ref_refresh_updates", "schedule_frames"),
        ),
        (1, 10**12),
        (0, -1, 10**12 + 1, 10**30),
    ),
    "a number from 0 to 1": Case(
        (
            "lr_final_fraction",
            *algorithms("gamma", "lmbda", "clip_final_fraction", "entropy_final_fraction"),
        ),
        (0.0, 1.0),
        (-0.1, 1.1, math.nan),
    ),
    "a number above 0 and below 1": Case(
        algorithms("clip_epsilon"), (1e-9, 0.999), (0.0, -1.0, 1.0, math.nan, math.inf)
    ),
    "a number from 0 and below 1": Case(("policy.noise_correlation",), (0.0, 0.999), (-0.1, 1.0, math.nan, math.inf)),
    "a number above 0 and at most 1": Case(("lr",), (1e-9, 1.0), (0.0, -1.0, 1.1, math.nan, math.inf)),
    "a number above 0 and at most 1_000_000": Case(
        (
            *("env.reward_scale", "policy.initial_std", "collector.timeout_s"),
            *algorithms("clip_epsilon_high", "kl_coeff"),
        ),
        (1e-9, 1e6),
        (0.0, -1.0, 1e300, math.nan, math.inf),
    ),
    "a number from 0 to 1_000_000": Case(
        algorithms("entropy_coeff", "critic_coeff", "kl_to_ref_coeff", "kl_to_inference_coeff"),
        (0.0, 1e6),
        (-0.1, 1e300, math.nan, math.inf),
    ),
    "a finite number above 0": Case(
        ("desired_kl", *algorithms("max_grad_norm", "target_kl", "clip_value", "kl_mask_threshold")),
        (1e-9, 1e300),
        (0.0, -1.0, math.nan, math.inf),
    ),
}
"""By the words of a refusal."""


@pytest.fixture
def check_with(defaults) -> Callable[[str, object], None]:
    """Checks the ranges of the defaults with one value in place of theirs."""

    def check_with(key: str, value: object) -> None:
        config = deepcopy(defaults)
        *groups, name = key.split(".")
        setattr(reduce(getattr, groups, config), name, value)
        ranges.check(config)

    return check_with


@pytest.mark.parametrize(
    ("key", "number", "words"),
    [(key, number, words) for words, case in CASES.items() for key in case.keys for number in case.beyond],
)
def test_a_number_out_of_its_range_is_refused_with_the_range(check_with, key, number, words):
    with pytest.raises(ConfigError) as caught:
        check_with(key, number)
    assert str(caught.value) == f"{key}={number} is out of range. Give {words}."


@pytest.mark.parametrize(
    ("key", "number"), [(key, number) for case in CASES.values() for key in case.keys for number in case.within]
)
def test_the_ends_of_a_range_are_fine(check_with, key, number):
    check_with(key, number)


@pytest.mark.parametrize("key", ["num_threads", "algorithm.max_grad_norm", "collector.timeout_s"])
def test_a_number_that_may_be_null_has_no_range_then(check_with, key):
    check_with(key, None)


def test_each_number_of_a_list_is_in_the_range_and_an_empty_one_is_fine(check_with):
    check_with("encoder.sizes", [])
    check_with("encoder.sizes", [1, 2**16])
    with pytest.raises(ConfigError) as caught:
        check_with("encoder.sizes", [8, 0])
    assert str(caught.value) == ("encoder.sizes[1]=0 is out of range. Give an integer from 1 to 65_536.")


def test_every_number_of_the_schema_has_a_range_or_a_rule_elsewhere():
    def type_of(key: str) -> object:
        return reduce(lambda kind, name: get_type_hints(kind)[name], key.split("."), TrainConfig)

    numbers = {key for key in key_paths(TrainConfig) if {int, float} & {type_of(key), *get_args(type_of(key))}}
    assert set(ranges.RANGES) == numbers - set(ELSEWHERE)
    assert set(ELSEWHERE) < numbers
    assert {key for case in CASES.values() for key in case.keys} == numbers - set(ELSEWHERE) - {"encoder.sizes"}
