"""Time to solve masked CartPole: recurrl's default run against sb3-contrib and TorchRL's loop.

Each peer gets the hyperparameters of recurrl's default run, where it has them, with four times the frames, over which
its schedules stretch; sb3-contrib also runs with those its users publish for this task (rl-zoo). Seconds cover
collection and learning, without start-up and evaluation. The loops run in separate processes and take turns, an
iteration at a time; a loop is done when an evaluation reaches the target return, or when its frames or seconds run out.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from benchmarks.command_line import add_output, add_threads, publish
from benchmarks.configuration import configuration
from benchmarks.loops import RemoteLoop, not_installed, remote_loop
from benchmarks.measuring import machine
from benchmarks.peers.task import Task
from recurrl.config import PPOConfig

T = TypeVar("T")
DEFAULT = "default run"
PEER_FRAMES_FACTOR = 4
"""Lets a peer that needs more frames than recurrl still solve the task."""
RL_ZOO = Task(
    cell="lstm",
    envs=8,
    steps=32,
    epochs=20,
    minibatches=1,
    hidden=64,
    lr=1e-3,
    gamma=0.98,
    lmbda=0.8,
    clip=0.2,
    seed=0,
    lr_final_fraction=0.0,
    clip_final_fraction=0.0,
    total_frames=100_000,
    normalize=True,
    normalize_reward=True,
)
"""https://github.com/DLR-RM/rl-baselines3-zoo, CartPoleNoVel-v1, with this network."""


@dataclass
class Attempt:
    """Progress of one loop with one seed."""

    loop: str
    settings: str
    seed: int
    frames: int = 0
    seconds: float = 0.0
    best: float = -float("inf")
    solved: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``benchmark.py solve``."""
    parser.add_argument("--loops", default="recurrl,sb3_contrib,torchrl", help="default: %(default)s")
    parser.add_argument("--seeds", default="0,1,2", help="default: %(default)s")
    parser.add_argument("--target", type=float, default=475, help="target return; default: %(default)s")
    parser.add_argument(
        "--every-frames", type=int, default=4096, help="frames between evaluations; default: %(default)s"
    )
    parser.add_argument("--episodes", type=int, default=20, help="episodes per evaluation; default: %(default)s")
    parser.add_argument("--limit-s", type=float, default=180, help="seconds per run; default: %(default)s")
    add_threads(parser, default=1)
    add_output(parser, "solve.md")


def run(arguments: argparse.Namespace) -> None:
    """Measures and writes the table."""
    torch.set_num_threads(arguments.threads)
    asked = arguments.loops.split(",")
    missing = not_installed(asked)
    tasks = {key: task for key, task in contenders(default_task()).items() if key[0] in set(asked) - set(missing)}
    attempts = [attempt for seed in arguments.seeds.split(",") for attempt in _attempts(tasks, int(seed), arguments)]
    text = f"Measured on {machine(torch.device('cpu'))}.\n\n{table(attempts, arguments.target)}\n"
    publish(text, arguments.output, "solve.md")


def default_task() -> Task:
    """The default run as a task for all loops."""
    config = configuration()
    algorithm = config.algorithm
    assert isinstance(algorithm, PPOConfig)
    return Task(
        cell=config.cell.name,
        envs=config.env.num_envs,
        steps=config.steps_per_row,
        epochs=config.epochs,
        minibatches=config.slices_per_batch // config.minibatch_slices,
        hidden=config.cell.hidden_size,
        lr=config.lr,
        gamma=algorithm.gamma,
        lmbda=algorithm.lmbda,
        clip=algorithm.clip_epsilon,
        seed=config.seed,
        lr_final_fraction=config.lr_final_fraction,
        clip_final_fraction=algorithm.clip_final_fraction,
        total_frames=config.total_frames,
        reward_scale=config.env.reward_scale,
        normalize=config.env.normalize_observation,
    )


def contenders(default: Task) -> dict[tuple[str, str], Task]:
    """The tasks by loop and settings."""
    longer = replace(default, total_frames=PEER_FRAMES_FACTOR * (default.total_frames or 0))
    return {
        ("recurrl", DEFAULT): default,
        ("sb3_contrib", DEFAULT): replace(longer, cell="lstm"),
        ("sb3_contrib", "rl-zoo"): RL_ZOO,
        ("torchrl", DEFAULT): longer,
    }


def _attempts(tasks: Mapping[tuple[str, str], Task], seed: int, arguments: argparse.Namespace) -> list[Attempt]:
    with ExitStack() as stack:
        running: list[tuple[Attempt, Task, RemoteLoop]] = []
        for (loop, settings), task in tasks.items():
            seeded = replace(task, seed=seed)
            remote = stack.enter_context(remote_loop(loop, seeded, arguments.threads))
            running.append((Attempt(loop, settings, seed), seeded, remote))
        attempts = [attempt for attempt, _, _ in running]
        while running:
            for attempt, task, remote in running:
                _iterate(attempt, task, remote, arguments)
            running = [each for each in running if not _done(each[0], each[1], arguments.limit_s)]
    return attempts


def _iterate(attempt: Attempt, task: Task, remote: RemoteLoop, arguments: argparse.Namespace) -> None:
    attempt.seconds += remote.call("collect")[0] + remote.call("learn")[0]
    before, attempt.frames = attempt.frames, attempt.frames + task.frames
    due = attempt.frames // arguments.every_frames > before // arguments.every_frames
    if due or _done(attempt, task, arguments.limit_s):
        _, mean = remote.call("evaluate", arguments.episodes)
        attempt.best = max(attempt.best, mean)
        attempt.solved = mean >= arguments.target


def _done(attempt: Attempt, task: Task, limit_s: float) -> bool:
    used_up = attempt.frames + task.frames > (task.total_frames or 0) or attempt.seconds > limit_s
    return attempt.solved or used_up


def table(attempts: list[Attempt], target: float) -> str:
    """Frames and seconds of each loop by seed, and its median seconds over recurrl's."""
    ours = _median_seconds([each for each in attempts if each.loop == "recurrl"])
    lines = [
        f"Frames and seconds until an evaluation reached {target:g}, or the best one if none did within the budget.",
        "",
        "| loop | settings | " + " | ".join(f"seed {seed}" for seed in _unique(each.seed for each in attempts)),
    ]
    lines[-1] += " | median s | over recurrl's |"
    lines.append("|" + "---|" * (lines[-1].count("|") - 1))
    for loop, settings in _unique((each.loop, each.settings) for each in attempts):
        found = [each for each in attempts if (each.loop, each.settings) == (loop, settings)]
        median = _median_seconds(found)
        more = "> " if sum(each.solved for each in found) <= len(found) / 2 else ""
        cells = [
            loop,
            settings,
            *map(_cell, found),
            f"{more}{median:.1f}",
            f"{more}{median / ours:.1f}" if ours else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _median_seconds(attempts: list[Attempt]) -> float:
    return statistics.median(each.seconds for each in attempts) if attempts else 0.0


def _cell(attempt: Attempt) -> str:
    reached = "" if attempt.solved else f"(best {attempt.best:.0f}) "
    return f"{reached}{attempt.frames:,} in {attempt.seconds:.1f} s"


def _unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
