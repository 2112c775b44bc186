"""The learning curve of a run as an image, drawn from its ``metrics.csv``."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from recurrl.runtime.atomic import replacing
from recurrl.tracking.trackers import FRAMES

TRAIN_MEAN = "train/return_mean"
EVAL_MEAN = "eval/return_mean"
EVAL_STD = "eval/return_std"


class Series(NamedTuple):
    """The finite values of one metric, their frames, and their spread; NaN without one."""

    frames: list[int]
    values: list[float]
    spread: list[float]


def plot_learning_curve(metrics_csv: Path, png: Path) -> None:
    """Plots returns over frames: training episodes as a line, evaluations as points with ±1 standard deviation.

    Without a finished episode, the axes are empty and say so.

    Raises:
        FileNotFoundError: the CSV file or the image's directory does not exist.
    """
    with metrics_csv.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    # Without pyplot, which would need a display or change the process's backend.
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    _decorate(axes, last_frames=max([1, *(int(row[FRAMES]) for row in rows)]))
    _draw(axes, _series(rows, TRAIN_MEAN), _series(rows, EVAL_MEAN, EVAL_STD))
    with replacing(png) as temporary:
        figure.savefig(temporary, format="png")


def _series(rows: list[dict[str, str]], column: str, spread_column: str | None = None) -> Series:
    series = Series([], [], [])
    for row in rows:
        value = _number(row.get(column))
        if math.isfinite(value):
            series.frames.append(int(row[FRAMES]))
            series.values.append(value)
            series.spread.append(_number(row.get(spread_column)) if spread_column else math.nan)
    return series


def _number(cell: str | None) -> float:
    """The value of a cell; NaN for an empty or missing one."""
    return float(cell) if cell else math.nan


def _decorate(axes: Axes, last_frames: int) -> None:
    axes.set_title("Learning curve", pad=12)
    axes.set_xlabel("frames (environment steps)")
    axes.set_ylabel("episode return")
    axes.set_xlim(0, 1.02 * last_frames)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _draw(axes: Axes, train: Series, evaluation: Series) -> None:
    if not train.values and not evaluation.values:
        axes.text(0.5, 0.5, "no finished episode yet", transform=axes.transAxes, ha="center", va="center", color="gray")
        axes.set_yticks([])
        return
    if train.values:
        only_one = len(train.values) == 1
        axes.plot(train.frames, train.values, color="C0", marker="." if only_one else "", label="training")
    if evaluation.values:
        axes.errorbar(
            evaluation.frames,
            evaluation.values,
            yerr=evaluation.spread,
            fmt="o",
            color="C1",
            capsize=4,
            zorder=3,
            label="evaluation (mean ± standard deviation)",
        )
    axes.legend(frameon=False, loc="best")
