"""The range of each number.

Ranges that depend on other values are checked in the other modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from recurrl.config import TrainConfig
from recurrl.config.keys import typed_value
from recurrl.errors import require


class Range(NamedTuple):
    """The numbers a key takes: in words that follow "Give", and as a predicate."""

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
CORRELATION = Range("a number from 0 and below 1", lambda number: 0 <= number < 1)
POSITIVE = Range("a finite number above 0", lambda number: 0 < number < math.inf)
SEED = Range(f"an integer from 0 to {2**31 - 1:_}", lambda number: 0 <= number < 2**31)

RANGES = {
    "seed": SEED,
    "num_threads": WORKERS,
    "total_frames": STEPS,
    "schedule_frames": STEPS,
    "frames_per_batch": STEPS,
    "slice_len": STEPS,
    "burn_in_len": STEPS,
    "epochs": STEPS,
    "minibatch_slices": STEPS,
    "lr": RATE,
    "lr_final_fraction": FRACTION,
    "desired_kl": POSITIVE,
    "max_skipped_steps": STEPS,
    "env.num_envs": COPIES,
    "env.max_episode_steps": STEPS,
    "env.reward_scale": SCALE,
    "cell.hidden_size": FEATURES,
    "cell.num_layers": LAYERS,
    "policy.encoder_sizes": FEATURES,
    "policy.initial_std": SCALE,
    "policy.noise_correlation": CORRELATION,
    "collector.num_workers": WORKERS,
    "collector.timeout_s": SECONDS,
    "checkpoint.every_frames": STEPS,
    "checkpoint.keep_last": STEPS,
    "evaluation.episodes": COPIES,
    "evaluation.every_frames": STEPS,
    "algorithm.gamma": FRACTION,
    "algorithm.clip_epsilon": BELOW_ONE,
    "algorithm.clip_epsilon_high": SCALE,
    "algorithm.clip_final_fraction": FRACTION,
    "algorithm.entropy_coeff": WEIGHT,
    "algorithm.entropy_final_fraction": FRACTION,
    "algorithm.max_grad_norm": POSITIVE,
    "algorithm.target_kl": POSITIVE,
    "algorithm.kl_coeff": SCALE,
    "algorithm.lmbda": FRACTION,
    "algorithm.critic_coeff": WEIGHT,
    "algorithm.clip_value": POSITIVE,
    "algorithm.kl_to_ref_coeff": WEIGHT,
    "algorithm.ref_refresh_updates": STEPS,
    "algorithm.kl_to_inference_coeff": WEIGHT,
    "algorithm.kl_mask_threshold": POSITIVE,
}
"""In the order of the schema. The range of a list applies to each entry."""


def check(config: TrainConfig) -> None:
    """Rejects numbers that are out of range."""
    for key, allowed in RANGES.items():
        for name, number in _numbers(key, typed_value(config, key)):
            require(allowed.holds(number), f"{name}={number} is out of range. Give {allowed.words}.")


def _numbers(key: str, value: float | list[int] | None) -> Iterator[tuple[str, float]]:
    """The numbers of a key, by name: none for null, each entry of a list."""
    if isinstance(value, list):
        yield from ((f"{key}[{place}]", number) for place, number in enumerate(value))
    elif value is not None:
        yield key, value
