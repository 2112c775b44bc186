"""Training against sb3-contrib, skrl, TorchRL and a loop in the style of CleanRL: frames/s, and peak memory.

Masked CartPole with the same network and hyperparameters for all. The loops run in separate processes; while timed they
take turns, an iteration at a time, so that a slowdown of the machine affects all of them: compare ratios, not times.
Memory is measured with each loop alone.
"""

import argparse
import random
import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.command_line import add_output, add_threads, publish
from benchmarks.loops import NEEDS, RemoteLoop, not_installed, remote_loop
from benchmarks.measuring import machine, peak_proportional_memory
from benchmarks.peers.task import Task

OURS = "recurrl"
CELLS = {
    OURS: ("gru", "lstm"),
    "sb3_contrib": ("lstm",),
    "torchrl": ("gru", "lstm"),
    "cleanrl": ("gru", "lstm"),
    "skrl": ("gru", "lstm"),
}
"""The cells compared for each loop."""


@dataclass(frozen=True)
class Figures:
    """Medians for one loop, cell and number of environments."""

    loop: str
    cell: str
    envs: int
    frames: int
    collect_s: float
    learn_s: float
    megabytes: float | None

    @property
    def collected_per_s(self) -> float:
        """Frames/s of collection alone."""
        return self.frames / self.collect_s

    @property
    def frames_per_s(self) -> float:
        """Frames/s of collection and learning together."""
        return self.frames / (self.collect_s + self.learn_s)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``benchmark.py train``."""
    parser.add_argument("--loops", default=",".join(CELLS), help="default: %(default)s")
    parser.add_argument("--cells", default="gru,lstm", help="default: %(default)s")
    parser.add_argument("--envs", default="8", help="numbers of environments, such as 8,64; default: %(default)s")
    parser.add_argument("--steps", type=int, default=128, help="steps per row; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=4, help="default: %(default)s")
    parser.add_argument(
        "--minibatches", type=int, default=4, help="minibatches per epoch, of whole rows; default: %(default)s"
    )
    parser.add_argument("--hidden", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--lr", type=float, default=3e-4, help="default: %(default)s")
    parser.add_argument("--repetitions", type=int, default=25, help="timed iterations; default: %(default)s")
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory")
    add_threads(parser, default=1)
    add_output(parser, "train.md", "train.png")


def run(arguments: argparse.Namespace) -> None:
    """Measures and writes the table, and with ``--output`` the plot."""
    torch.set_num_threads(arguments.threads)
    requested = arguments.loops.split(",")
    missing = not_installed(requested)
    figures = [
        each
        for envs in arguments.envs.split(",")
        for each in _measure(
            {
                (loop, cell): _task(cell, int(envs), arguments)
                for loop in requested
                if loop not in missing
                for cell in CELLS[loop]
                if cell in arguments.cells.split(",")
            },
            arguments,
        )
    ]
    notes = [f"Not compared because it is not installed: {loop} (pip install {NEEDS[loop]})." for loop in missing]
    text = "\n\n".join(
        [f"# Training: all figures\n\nMeasured on {machine(torch.device('cpu'))}.", *notes, table(figures)]
    )
    publish(text + "\n", arguments.output, "train.md")
    if arguments.output is not None:
        plot(figures, arguments.output / "train.png")


def _task(cell: str, envs: int, arguments: argparse.Namespace) -> Task:
    names = ("steps", "epochs", "minibatches", "hidden", "lr")
    settings: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    return Task(cell=cell, envs=envs, gamma=0.99, lmbda=0.95, clip=0.2, seed=0, **settings)


def _measure(tasks: Mapping[tuple[str, str], Task], arguments: argparse.Namespace) -> Iterator[Figures]:
    threads = arguments.threads
    memory = {key: None if arguments.no_memory else _memory(key[0], task, threads) for key, task in tasks.items()}
    times = _times(tasks, threads, arguments.repetitions)
    for (loop, cell), task in tasks.items():
        collect_s, learn_s = map(statistics.median, zip(*times[loop, cell], strict=True))
        yield Figures(loop, cell, task.envs, task.frames, collect_s, learn_s, memory[loop, cell])


def _times(
    tasks: Mapping[tuple[str, str], Task], threads: int, repetitions: int
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Seconds to collect and to learn per iteration of each loop, after two warm-up iterations."""
    times: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in tasks}
    order = random.Random(0)
    with ExitStack() as stack:
        loops = {key: stack.enter_context(remote_loop(key[0], task, threads)) for key, task in tasks.items()}
        for repetition in range(-2, repetitions):
            for key in order.sample(list(loops), len(loops)):
                seconds = _iteration(loops[key])
                if repetition >= 0:
                    times[key].append(seconds)
    return times


def _memory(loop: str, task: Task, threads: int) -> float | None:
    """Peak MB of a loop's processes over its first iterations, shared pages in proportion."""
    with remote_loop(loop, task, threads) as remote, peak_proportional_memory(remote.pid) as peak:
        for _ in range(3):
            _iteration(remote)
    return peak()


def _iteration(loop: RemoteLoop) -> tuple[float, float]:
    """Seconds to collect and to learn."""
    return loop.call("collect")[0], loop.call("learn")[0]


def table(figures: list[Figures]) -> str:
    """Medians, and recurrl's speed over each peer's at the same number of environments and cell."""
    lines = [
        "Frames/s of collection and learning together and of collection alone, milliseconds to learn from one "
        "iteration's frames, peak MB. Ratios: recurrl's frames/s with the same cell over the loop's, together and for "
        "collection alone.",
        "",
        "| envs | loop | cell | frames/s | collection | ms to learn | MB | recurrl / | collection |",
        "|" + "---|" * 9,
    ]
    for each in figures:
        megabytes = "" if each.megabytes is None else f"{each.megabytes:.0f}"
        ours = [other for other in figures if (other.loop, other.cell, other.envs) == (OURS, each.cell, each.envs)]
        ratios = " | "
        if ours and each.loop != OURS:
            together = ours[0].frames_per_s / each.frames_per_s
            ratios = f"{together:.1f} | {ours[0].collected_per_s / each.collected_per_s:.1f}"
        lines.append(
            f"| {each.envs} | {each.loop} | {each.cell} | {each.frames_per_s:,.0f} | {each.collected_per_s:,.0f} "
            f"| {1e3 * each.learn_s:.0f} | {megabytes} | {ratios} |"
        )
    return "\n".join(lines)


def plot(figures: list[Figures], path: Path) -> None:
    """Plots frames/s of collection and learning together, of collection alone, and peak memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.5), layout="constrained")
    together, collected, memory = figure.subplots(1, 3)
    labels = [f"{each.loop}\n{each.cell}, {each.envs} envs" for each in figures]
    colors = ["tab:blue" if each.loop == OURS else "tab:gray" for each in figures]
    for axes, values, title in (
        (together, [each.frames_per_s for each in figures], "frames/s, collection and learning"),
        (collected, [each.collected_per_s for each in figures], "frames/s, collection alone"),
        (memory, [each.megabytes or 0.0 for each in figures], "peak memory, MB"),
    ):
        bars = axes.barh(range(len(figures)), values, color=colors)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
        axes.set_yticks(range(len(figures)), labels, fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=120)
