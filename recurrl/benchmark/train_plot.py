"""The plot of ``benchmark.py train``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from recurrl.benchmark.train import Figures


def plot(figures: list[Figures], path: Path) -> None:
    """Frames/s of collection and learning together, of collection alone, and peak memory."""
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    together, collected, memory = figure.subplots(1, 3)
    labels = [f"{each.loop}\n{each.cell}, {each.envs} envs" for each in figures]
    colors = ["tab:blue" if each.loop == "recurrl" else "tab:gray" for each in figures]
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
