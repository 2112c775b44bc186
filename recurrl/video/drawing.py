"""The frames of a video: the environment on the left, and on the right curves of what is hidden and remembered.

Shape legend: T steps, U units of a state.
"""

import io
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont, ImageOps

from recurrl.envs.checks import Array
from recurrl.returns import return_format
from recurrl.video.episode import Episode

WIDTH, HEIGHT = 1280, 576
"""Multiples of 16, the size of H.264's blocks."""
_LEFT, _MARGIN, _TOP = 600, 20, 84
"""Width of the environment's side, margin around its picture, and height of the text above it."""
_DPI = 100
_FADED = 0.8
"""How far the curves of the future are faded towards white, from 0 to 1."""
_LAST_FRAME_S = 1.0
"""How long the last frame of an episode is shown, in seconds."""


def frames(episode: Episode, every: int = 1) -> Iterator[Image.Image]:
    """The frames of an episode: one for the beginning and one after each step, and the last one for a while.

    Args:
        episode: an episode of at least one step.
        every: draw only every ``every``-th frame.
    """
    curves, steps = _Curves(episode), len(episode.actions)
    form = return_format(float(np.abs(episode.returns).max()))
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    large, small = (ImageFont.truetype(fonts, size) for size in (22, 19))
    for frame in range(0, steps + round(_LAST_FRAME_S * episode.fps) + 1, every):
        step = min(frame, steps)
        page = Image.new("RGB", (WIDTH, HEIGHT), "white")
        page.paste(curves.at(step), (_LEFT, 0))
        _paste_picture(page, episode.pictures[step])
        draw, so_far = ImageDraw.Draw(page), episode.returns[step - 1] if step else 0.0
        action = _text(episode.actions[step]) if step < steps else "none, the episode is over"
        facts = f"step {step} of {steps}, return {so_far:{form}}, action {action}"
        draw.text((_MARGIN, 12), textwrap.shorten(episode.title, 46, placeholder="…"), fill="black", font=large)
        draw.text((_MARGIN, 46), textwrap.shorten(facts, 56, placeholder="…"), fill="#444444", font=small)
        yield page


def _paste_picture(page: Image.Image, png: bytes) -> None:
    """The environment's picture, as large as its side of the page."""
    picture, size = Image.open(io.BytesIO(png)), (_LEFT - 2 * _MARGIN, HEIGHT - _TOP - _MARGIN)
    enlarged = picture.width < size[0] and picture.height < size[1]
    # When enlarged, pixels stay sharp: those of small pictures are symbols.
    method = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
    page.paste(ImageOps.pad(picture, size, method, "white"), (_MARGIN, _TOP))


def _text(action: Any) -> str:
    return np.array2string(action, precision=2) if isinstance(action, np.ndarray) else str(action)


class _Curves:
    """The curves of a whole episode; :meth:`at` fades those of the future."""

    def __init__(self, episode: Episode) -> None:
        self._steps = len(episode.actions)
        figure = Figure(figsize=((WIDTH - _LEFT) / _DPI, HEIGHT / _DPI), dpi=_DPI, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        self._axes = _draw(figure, episode)
        canvas.draw()
        self._drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        self._faded = Image.blend(self._drawn, Image.new("RGB", self._drawn.size, "white"), _FADED)

    def at(self, step: int) -> Image.Image:
        """The curves after ``step`` steps."""
        image = self._drawn.copy()
        for axes in self._axes:
            box = axes.get_window_extent()
            x, top, bottom = round(box.x0 + box.width * step / self._steps), HEIGHT - box.y1, HEIGHT - box.y0
            future = (x, round(top), round(box.x1), round(bottom))
            image.paste(self._faded.crop(future), future)
            ImageDraw.Draw(image).line((x, top, x, bottom), fill="#282828", width=2)
        return image


def _draw(figure: Figure, episode: Episode) -> list[Axes]:
    """Draws the hidden entries, the value and the states, or the return if there is none of these."""
    curves: dict[str, dict[str, Array]] = {}
    if episode.hidden:
        hidden = {f"[{index}]": values for index, values in episode.hidden.items()}
        curves["entries of the observation that are hidden from the policy"] = hidden
    if episode.values is not None:
        curves["value: the discounted return expected, as scaled for learning"] = {"": episode.values}
    if not (curves or episode.states):
        curves["return"] = {"": episode.returns}
    heights = [1.0] * len(curves) + [2.4 / len(episode.states) for _ in episode.states]
    all_axes = list(np.atleast_1d(figure.subplots(len(heights), height_ratios=heights, sharex=True)))
    steps = np.arange(len(episode.actions)) + 0.5
    for axes, (title, lines) in zip(all_axes, curves.items(), strict=False):
        axes.set_title(title, loc="left", fontsize=12)
        axes.grid(alpha=0.3)
        for label, values in lines.items():
            axes.plot(steps, values, color=None if label else "black", linewidth=1.6, label=label)
        if all(lines):
            axes.legend(loc="upper left", fontsize=9, ncols=min(len(lines), 6))
    for axes, (name, state_TU) in zip(all_axes[len(curves) :], episode.states.items(), strict=True):
        _draw_state(figure, axes, name, state_TU)
    all_axes[-1].set_xlabel("step", fontsize=12)
    for axes in all_axes:
        axes.set_xlim(0, len(steps))
        axes.tick_params(labelsize=11)
        axes.spines[["top", "right"]].set_visible(False)
    return all_axes


def _draw_state(figure: Figure, axes: Axes, name: str, state_TU: Array) -> None:
    limit, (steps, units) = float(np.quantile(np.abs(state_TU), 0.99)) or 1.0, state_TU.shape
    ordered, extent = state_TU[:, state_TU.mean(0).argsort()[::-1]].T, (0, steps, units, 0)
    image = axes.imshow(
        ordered, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, extent=extent, interpolation="nearest"
    )
    axes.set_title(f"{name}: {units} units, ordered by their mean", loc="left", fontsize=12)
    axes.set_yticks([])
    figure.colorbar(image, ax=axes, pad=0.01, fraction=0.04).ax.tick_params(labelsize=10)
