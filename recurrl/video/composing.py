"""The pictures of a video: the environment on the left with what it hides below, the curves on the right."""

import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_hex
from PIL import Image, ImageDraw, ImageFont

from recurrl.video.episode import Episode
from recurrl.video.panel import Panel, color_of

WIDTH, HEIGHT = 1280, 576
"""Multiples of 16, as H.264 has its blocks."""
_LEFT = 600
_MARGIN = 20
_TOP, _BOTTOM = 84, 100
"""Heights of the text above and below the picture."""
_LINE = 30
_PER_LINE = 4
_HOLD = 1.0
"""Seconds for which the last picture of an episode stays."""


def composed(episode: Episode, every: int = 1) -> Iterator[Image.Image]:
    """The pictures of an episode: one for the beginning and one after each step, and the last one for a while.

    Args:
        episode: of at least one step.
        every: leave out all but each ``every``-th picture.
    """
    panel, steps = Panel(episode, WIDTH - _LEFT, HEIGHT), len(episode.actions)
    for step in range(0, steps + round(_HOLD * episode.fps) + 1, every):
        yield _composed(panel, episode, min(step, steps))


def _composed(panel: Panel, episode: Episode, step: int) -> Image.Image:
    page = Image.new("RGB", (WIDTH, HEIGHT), "white")
    page.paste(Image.fromarray(panel.at(step)), (_LEFT, 0))
    _place(page, episode.pictures[step], _BOTTOM if episode.hidden else _MARGIN)
    _write(ImageDraw.Draw(page), episode, step)
    return page


def _place(page: Image.Image, png: bytes, bottom: int) -> None:
    """The environment's picture, as large as there is room."""
    picture = Image.open(io.BytesIO(png))
    room = _LEFT - 2 * _MARGIN, HEIGHT - _TOP - bottom
    scale = min(room[0] / picture.width, room[1] / picture.height)
    size = round(picture.width * scale), round(picture.height * scale)
    # Enlarged pixels stay sharp: those of small pictures are symbols.
    resized = picture.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)
    page.paste(resized, (_MARGIN + (room[0] - size[0]) // 2, _TOP + (room[1] - size[1]) // 2))


def _write(draw: ImageDraw.ImageDraw, episode: Episode, step: int) -> None:
    steps = len(episode.actions)
    done = episode.returns[step - 1] if step else 0.0
    draw.text((_MARGIN, 12), _cut(episode.title, 46), fill="black", font=_font(22))
    action = _text(episode.actions[step]) if step < steps else "none, the episode is over"
    told = f"step {step} of {steps}   return {done:.4g}   action {action}"
    draw.text((_MARGIN, 46), _cut(told, 56), fill="#444444", font=_font(19))
    if not episode.hidden:
        return
    top = HEIGHT - _BOTTOM + 6
    draw.text(
        (_MARGIN, top), "hidden from the policy, by its index in the observation:", fill="#444444", font=_font(19)
    )
    shown = list(episode.hidden.items())[: 2 * _PER_LINE]
    for place, (index, values) in enumerate(shown):
        line, column = divmod(place, _PER_LINE)
        at = _MARGIN + column * (_LEFT - 2 * _MARGIN) // _PER_LINE, top + _LINE * (line + 1)
        text = f"[{index}] {values[min(step, steps - 1)]:+.2f}".replace("-", "−")
        draw.text(at, text, fill=to_hex(color_of(place)), font=_font(19))


def _text(action: Any) -> str:
    array = np.asarray(action)
    return np.array2string(array, precision=2) if array.dtype.kind == "f" else str(action)


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split(" ")).replace("\n", " ")
    return line if len(line) <= most else f"{line[: most - 1]}…"


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)
