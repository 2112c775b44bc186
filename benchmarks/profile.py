"""Time of an iteration by part of collection and learning, with each part's share of the whole, and processor time.

The parts are timed in place while training runs; the remainder is the loop around them. You can profile any
configuration: python scripts/benchmark.py profile cell=lstm env.num_envs=8 frames_per_batch=1024
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.configuration import configuration
from benchmarks.measuring import machine
from recurrl.algorithms.algorithm import Algorithm
from recurrl.build import make_algorithm, make_collector, make_policy_for, set_process_state
from recurrl.collector.single import SingleCollector
from recurrl.config import TrainConfig

Times = dict[str, np.ndarray]
"""Seconds ``[2]`` of each part: by the clock, and of processors over all threads of the process."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``benchmark.py profile``."""
    parser.add_argument("overrides", nargs="*", help="configuration overrides as for training: key=value")
    parser.add_argument("--iterations", type=int, default=10, help="timed iterations; default: %(default)s")


def run(arguments: argparse.Namespace) -> None:
    """Trains for some iterations and prints the table."""
    config = configuration(*arguments.overrides, "collector=single", "collector.on_env_error=raise")
    times = profile(config, arguments.iterations)
    text = f"Measured on {machine(torch.device(config.device))}.\n\n{table(times, config)}"
    sys.stdout.write(text + "\n")


def profile(config: TrainConfig, iterations: int) -> Times:
    """Time per iteration by part, named ``whole/part``. Two iterations are warm-up."""
    set_process_state(config)
    policy = make_policy_for(config)
    algorithm = make_algorithm(config, policy)
    rollout = make_collector(config, policy)
    assert isinstance(rollout, SingleCollector)
    times: Times = defaultdict(lambda: np.zeros(2))
    with timed(_parts(rollout, algorithm), times):
        for iteration in range(-2, iterations):
            if iteration == 0:
                times.clear()
            rows = _timed(rollout.collect, "collect", times)()
            _timed(algorithm.update, "learn", times)(rows, progress=0.0)
    rollout.shutdown()
    return {name: seconds / iterations for name, seconds in times.items()}


def _parts(rollout: SingleCollector, algorithm: Algorithm) -> list[tuple[Any, str, str]]:
    """Object, attribute and name of each part."""
    return [
        (rollout.env, "step_tensors", "collect/environment steps"),
        (rollout.env, "reset_tensors", "collect/environment resets"),
        (rollout.policy, "step", "collect/policy"),
        (rollout.policy, "reset", "collect/resets of states"),
        (algorithm, "prepare", "learn/advantages"),
        (algorithm.buffer, "extend", "learn/buffer"),
        (algorithm.states, "set_initial_states", "learn/initial states of slices"),
        (algorithm.states, "drift", "learn/state drift"),
        (algorithm, "backward", "learn/losses and gradients"),
        (nn.utils, "clip_grad_norm_", "learn/gradient clipping"),
        (algorithm.optimizer, "step", "learn/optimizer"),
        (algorithm.policy, "update_statistics", "learn/observation statistics"),
    ]


@contextmanager
def timed(parts: list[tuple[Any, str, str]], times: Times) -> Iterator[None]:
    """Accumulates each part's time under its name."""
    kept = [(owner, name, vars(owner).get(name)) for owner, name, _ in parts]
    for owner, name, label in parts:
        setattr(owner, name, _timed(getattr(owner, name), label, times))
    try:
        yield
    finally:
        for owner, name, before in kept:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _timed(function: Callable[..., Any], label: str, times: Times) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        began = _clocks()
        try:
            return function(*arguments, **options)
        finally:
            times[label] += _clocks() - began

    return run


def _clocks() -> np.ndarray:
    return np.array((time.perf_counter(), time.process_time()))


def table(times: Times, config: TrainConfig) -> str:
    """Milliseconds per iteration by the clock and of processor time, and percentages of the clock."""
    collect = times["collect"][0]
    whole = collect + times["learn"][0]
    frames = config.frames_per_batch
    lines = [
        f"{config.env.id}, {config.env.num_envs} environments, {frames} frames per iteration, cell {config.cell.name}: "
        f"{frames / whole:,.0f} frames/s, {frames / collect:,.0f} for collection alone.",
        "",
        "| part | ms | % | processor ms |",
        "|---|---|---|---|",
    ]
    for name in _in_order(times):
        indent = "&emsp;" * name.count("/")
        wall, processor = times[name]
        label = f"{indent}{name.rpartition('/')[2]}"
        lines.append(f"| {label} | {1e3 * wall:.1f} | {100 * wall / whole:.0f} | {1e3 * processor:.1f} |")
    return "\n".join(lines)


def _in_order(times: Times) -> Iterator[str]:
    """Each whole followed by its parts, longest first."""

    def wall(name: str) -> float:
        return float(times[name][0])

    for whole in sorted((name for name in times if "/" not in name), key=wall, reverse=True):
        yield whole
        yield from sorted((name for name in times if name.startswith(f"{whole}/")), key=wall, reverse=True)
