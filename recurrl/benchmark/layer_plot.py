"""The plot of ``benchmark.py layer``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from recurrl.benchmark.layer import Case


def plot(
    cases: list[Case], by_distribution: dict[str, dict[str, float]], by_size: dict[str, dict[str, float]], path: Path
) -> None:
    """Times over plain torch's by shape; microseconds a frame by distribution of resets, and by number of frames."""
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    ratios, distribution, size = figure.subplots(1, 3, width_ratios=(2, 1, 1))
    names = [name for name in cases[0].seconds if name != "plain torch"]
    width = 0.8 / len(names)
    for k, name in enumerate(names):
        heights = [case.seconds[name] / case.seconds["plain torch"] for case in cases]
        ratios.bar([position + k * width for position in range(len(cases))], heights, width, label=name)
    ratios.axhline(1, color="black", linewidth=0.8)
    ratios.set_yscale("log")
    ratios.set_ylabel("time / plain torch without resets")
    labels = [
        "{}\n{}×{}\n{}×{}\n{:g} resets".format(case.cell, *case.shape, case.resets)  # rows × steps, inputs × hidden
        for case in cases
    ]
    ratios.set_xticks([position + 0.4 for position in range(len(cases))], labels, fontsize=7)
    ratios.legend(fontsize=8)
    for axes, by_cell, label in ((distribution, by_distribution, "resets"), (size, by_size, "frames")):
        for cell, figures in by_cell.items():
            axes.plot(list(figures), list(figures.values()), marker="o", label=cell)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(label)
        axes.set_ylabel("µs a frame, forward and backward")
        axes.tick_params(axis="x", labelsize=8)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
