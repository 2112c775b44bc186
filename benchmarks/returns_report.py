"""What finished runs of the suites came to: a table and a picture per suite.

A row has the interquartile mean over seeds of the deterministic evaluation with a 95% bootstrap interval, the return of
training, whose actions are sampled, frames and seconds to the task's threshold, the control without memory, the return
with the memory zeroed, and the published figure.
"""

import math
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.measuring import machine
from benchmarks.suites import CONTROL, PEER, PEER_SECONDS, Job, Task
from recurrl.returns import interquartile_mean
from recurrl.runtime.run_summary import read_summary
from recurrl.tracking.csv import curve_of, read_rows


@dataclass(frozen=True)
class Result:
    """What a finished run came to.

    Attributes:
        final: the return of the last evaluation, of most probable actions.
        sampled: the return of training's last 100 episodes, with sampled actions; NaN if it was not measured.
        zeroed: the return with the states zeroed at each step; NaN without a memory.
        random: the return of random actions; NaN if it was not measured.
        curve: evaluation returns by frames.
        seconds: of training, in total.
    """

    final: float
    sampled: float
    zeroed: float
    random: float
    curve: Mapping[int, float]
    seconds: float

    def frames_to(self, threshold: float) -> float:
        """Frames at the first evaluation that reaches the threshold; infinite if none does."""
        return min((frames for frames, value in self.curve.items() if value >= threshold), default=math.inf)

    def seconds_to(self, threshold: float) -> float:
        """Seconds of training until the first evaluation that reaches the threshold; infinite if none does."""
        return self.seconds * self.frames_to(threshold) / max(self.curve)


def result(folder: Path) -> Result | None:
    """What the run in a folder came to; None if it is not finished."""
    values = read_summary(folder)
    if values.get("status") != "completed":
        return None
    rows = read_rows(folder / "metrics.csv")
    curve = dict(curve_of(rows, "eval/return_mean"))
    seconds = sum(float(row["time/collect_s"]) + float(row["time/learn_s"]) for row in rows)
    keys = ("eval_return_mean", "train_return_mean", "eval_return_mean_zeroed_state", "eval_return_mean_random")
    measured = (math.nan if values.get(key) is None else float(values[key]) for key in keys)
    final, sampled, zeroed, random = measured
    return Result(final, sampled, zeroed, random, curve, seconds)


def report(selection: Mapping[str, Sequence[Task]], results: Mapping[Job, Result], overrides: Sequence[str]) -> str:
    """The page, as Markdown: one table per suite, which also lists the tasks that were not measured."""
    cells = list(dict.fromkeys(job.cell for job in results if job.cell not in (CONTROL, PEER)))
    changed = f", with `{' '.join(overrides)}`" if overrides else ""
    lines = [
        "# Returns",
        "",
        f"Measured on {machine(torch.device('cpu'))}; several runs at a time, each on one thread. One recipe for all "
        f"tasks{changed}. Written by `python scripts/benchmark.py returns --suite {','.join(selection)}` at commit "
        f"{_commit()}; tasks without a return were not measured.",
        "",
        "- *Return* comes from the last evaluation, which plays the most probable actions; *sampled* from the last 100 "
        "episodes of training. Both are interquartile means over seeds, with 95% bootstrap intervals.",
        "- *Solved*: seeds that reached the threshold in an evaluation; frames and seconds to it are medians over all.",
        "- *At most* bounds any policy's expected return; a measured mean can exceed it by chance.",
        "- *Published*: POPGym's are the highest mean of a training iteration, sampled; Medium tasks' are left out.",
    ]
    for suite, tasks in selection.items():
        lines += [
            "",
            f"## Suite: {suite}",
            "",
            "| task | frames | cell | seeds | return | sampled | threshold | solved | frames to it | seconds to it "
            "| without memory | memory zeroed | random | at most | published (frames; source) |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for task in tasks:
            rows = [row for cell in cells for row in _row(task, cell, results)]
            lines += rows or [_line(task)]
        if any(job.task in tasks for job in results):
            lines += ["", f"![Learning curves: interquartile mean and middle half over seeds]({_picture(suite)})"]
    every = dict.fromkeys(task for tasks in selection.values() for task in tasks)
    peers = [line for task in every for cell in cells for line in _against_peer(task, cell, results)]
    if peers:
        lines += [
            "",
            "## Time to a return, against sb3-contrib's RecurrentPPO",
            "",
            "Medians over seeds of frames, and of seconds of collection and learning, until an evaluation "
            f"reached the threshold. sb3-contrib has the settings that rl-zoo publishes for the task, or its defaults; "
            f"its runs ended at the threshold or after {PEER_SECONDS} s.",
            "",
            "| task | threshold | cell | seeds | frames | seconds | peer: seeds | solved | frames | seconds | ratio |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *peers,
        ]
    return "\n".join(lines) + "\n"


def _picture(suite: str) -> str:
    """The file of a suite's learning curves."""
    return f"returns-{suite}.png"


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def verdict(jobs: Iterable[Job], results: Mapping[Job, Result]) -> str:
    """Whether most seeds of each task and cell with a memory reached the threshold, in a sentence."""
    reached: dict[str, list[bool]] = {}
    for job in jobs:
        if job.cell not in (CONTROL, PEER):
            solved = job in results and math.isfinite(results[job].frames_to(job.task.threshold))
            reached.setdefault(f"{job.task.name} {job.cell}", []).append(solved)
    missed = [
        f"{name} ({sum(seeds)} of {len(seeds)})" for name, seeds in reached.items() if sum(seeds) <= len(seeds) / 2
    ]
    if missed:
        return f"\nNot reproduced; seeds that reached the threshold: {', '.join(missed)}.\n"
    return "\nReproduced: on each task most seeds reached the threshold.\n"


def _against_peer(task: Task, cell: str, results: Mapping[Job, Result]) -> Iterator[str]:
    ours, theirs = _of(task, cell, results), _of(task, PEER, results)
    if not ours or not theirs:
        return
    (frames, seconds), (their_frames, their_seconds) = (
        ([each.frames_to(task.threshold) for each in runs], [each.seconds_to(task.threshold) for each in runs])
        for runs in (ours, theirs)
    )
    solved = sum(map(math.isfinite, their_frames))
    ratio = statistics.median_high(
        [needed if math.isfinite(needed) else run.seconds for needed, run in zip(their_seconds, theirs, strict=True)]
    ) / statistics.median_high(seconds)
    yield (
        f"| {task.name} | {task.threshold:g} | {cell} | {len(ours)} | {_median(frames, ',.0f')} | "
        f"{_median(seconds, ',.1f')} | {len(theirs)} | {solved} of {len(theirs)} | {_median(their_frames, ',.0f')} | "
        f"{_median(their_seconds, ',.1f')} | {'' if solved > len(theirs) / 2 else '> '}{ratio:.1f} |"
    )


def _row(task: Task, cell: str, results: Mapping[Job, Result]) -> Iterator[str]:
    runs = _of(task, cell, results)
    if not runs:
        return
    control = [each.final for each in _of(task, CONTROL, results)]
    to_frames = [each.frames_to(task.threshold) for each in runs]
    yield _line(
        task,
        cell,
        str(len(runs)),
        _with_interval([each.final for each in runs]),
        _with_interval([each.sampled for each in runs]),
        f"{sum(map(math.isfinite, to_frames))} of {len(runs)}",
        _median(to_frames, ",.0f"),
        _median([each.seconds_to(task.threshold) for each in runs], ",.1f"),
        _with_interval(control) if control else "–",
        _rounded(interquartile_mean([each.zeroed for each in runs])),
        random=interquartile_mean([each.random for each in runs]),
    )


def _line(task: Task, *measured: str, random: float = math.nan) -> str:
    """The row of a task: cell, seeds and returns, what it came to, and what is known of the task."""
    cells = [*measured, *["–"] * (9 - len(measured))]
    cited = "{:g} ({:,}; {})".format(*task.published) if task.published else "–"
    known = _rounded(random if task.random is None else task.random)
    at_most = "–" if task.at_most is None else f"{task.at_most:g}"
    fields = [task.name, f"{task.frames:,}", *cells[:4], f"{task.threshold:g}", *cells[4:], known, at_most, cited]
    return "| " + " | ".join(fields) + " |"


def _of(task: Task, cell: str, results: Mapping[Job, Result]) -> list[Result]:
    return [each for job, each in results.items() if (job.task, job.cell) == (task, cell)]


def _with_interval(values: Sequence[float]) -> str:
    low, high = bootstrap_95(values, interquartile_mean)
    if math.isnan(low):
        return "–"
    return f"{_rounded(interquartile_mean(values))} ({_rounded(low)} to {_rounded(high)})"


def bootstrap_95(values: Sequence[float], statistic: Callable[[np.ndarray], Any]) -> tuple[float, float]:
    """The interval that holds a statistic with a probability of about 95%, if there are ten values or more.

    Its ends are percentiles of the statistic of 10,000 resamples.

    Args:
        values: independent samples.
        statistic: of samples along the last axis.
    """
    samples, count, generator = np.asarray(values, np.float64), len(values), np.random.default_rng(0)
    drawn = [statistic(samples[generator.integers(count, size=(100, count))]) for _ in range(100)]
    low, high = np.quantile(np.concatenate(drawn), (0.025, 0.975))
    return float(low), float(high)


def _rounded(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _median(values: Sequence[float], form: str) -> str:
    middle = statistics.median_high(values)
    return format(middle, form) if math.isfinite(middle) else "–"


def draw(selection: Mapping[str, Sequence[Task]], results: Mapping[Job, Result], folder: Path) -> None:
    """Learning curves, a picture per suite: the interquartile mean over seeds, and the range of the middle half."""
    for suite, listed in selection.items():
        tasks = [task for task in listed if any(job.task == task for job in results)]
        if not tasks:
            continue
        columns = min(4, len(tasks))
        rows = math.ceil(len(tasks) / columns)
        figure = Figure(figsize=(3.4 * columns, 2.5 * rows + 0.4), dpi=120, layout="constrained")
        axes = list(np.atleast_1d(figure.subplots(rows, columns)).flat)
        for task, each in zip(tasks, axes, strict=False):
            _draw_one(each, task, results)
        for unused in axes[len(tasks) :]:
            unused.set_axis_off()
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.savefig(folder / _picture(suite))


def _draw_one(axes: Axes, task: Task, results: Mapping[Job, Result]) -> None:
    for number, cell in enumerate(dict.fromkeys(job.cell for job in results)):
        runs = _of(task, cell, results)
        if not runs:
            continue
        frames = sorted(set.intersection(*(set(each.curve) for each in runs)))
        values = np.array([[each.curve[at] for at in frames] for each in runs])
        colour = "0.6" if cell == CONTROL else f"C{number}"
        low, high = np.percentile(values, (25, 75), axis=0)
        label = "no memory" if cell == CONTROL else cell
        axes.plot(frames, interquartile_mean(values.T), color=colour, label=label)
        axes.fill_between(frames, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.axhline(task.threshold, color="0.3", linewidth=0.8, linestyle=":")
    axes.set_title(task.name, fontsize=9)
    axes.tick_params(labelsize=7)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.spines[["top", "right"]].set_visible(False)
