"""The learning curve of a run as an image, drawn from its ``metrics.csv``."""

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from recurrl.runtime.atomic import replacing
from recurrl.tracking import FRAMES
from recurrl.tracking.csv import Row, curve_of, read_rows


def plot_learning_curve(metrics_csv: Path, png: Path) -> None:
    """Plots returns over frames: training episodes as a line, evaluations as points with ±1 standard deviation.

    Without a finished episode, the axes are empty and say so.

    Raises:
        ConfigError: the CSV file does not exist, or is malformed.
        FileNotFoundError: the image's directory does not exist.
    """
    rows = read_rows(metrics_csv)
    # Without pyplot, which would need a display or change the process's backend.
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title("Learning curve", pad=12)
    axes.set(xlabel="frames (environment steps)", ylabel="episode return")
    axes.set_xlim(0, 1.02 * max([1, *(int(row[FRAMES]) for row in rows)]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    _draw(axes, rows)
    with replacing(png) as temporary:
        figure.savefig(temporary, format="png")


def _draw(axes: Axes, rows: list[Row]) -> None:
    train, evaluation = curve_of(rows, "train/return_mean"), curve_of(rows, "eval/return_mean")
    if not train and not evaluation:
        axes.text(0.5, 0.5, "no finished episode yet", transform=axes.transAxes, ha="center", va="center", color="gray")
        axes.set_yticks([])
        return
    if train:
        label, marker = "training (sampled actions, last 100 episodes)", "." if len(train) == 1 else ""
        axes.plot(*zip(*train, strict=True), color="C0", marker=marker, label=label)
    if evaluation:
        frames, returns = zip(*evaluation, strict=True)
        deviation_at = dict(curve_of(rows, "eval/return_std"))
        deviations = [deviation_at.get(at, math.nan) for at in frames]
        label = "evaluation (most probable actions, mean ± standard deviation)"
        axes.errorbar(frames, returns, yerr=deviations, fmt="o", color="C1", capsize=4, zorder=3, label=label)
    axes.legend(frameon=False, loc="best")
