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
from recurrl.tracking import FRAMES

TRAIN_MEAN = "train/return_mean"
EVAL_MEAN = "eval/return_mean"
EVAL_STD = "eval/return_std"


class Series(NamedTuple):
    """Values of one metric where it has one, the frames they belong to, and their spread where another gives it."""

    frames: list[int]
    values: list[float]
    spread: list[float]


def plot_learning_curve(metrics_csv: Path, png: Path) -> None:
    """Draws returns over frames: the training episodes as a line, evaluations as points with ±1 standard deviation.

    A run without a finished episode gives empty axes that say so.

    Raises:
        FileNotFoundError: there is no such CSV file, or no directory for the image.
    """
    with metrics_csv.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    # A figure made without pyplot draws with Agg, needs no display and leaves the process's backend alone.
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
    """The value of a cell; NaN for an empty one, or none at all."""
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
