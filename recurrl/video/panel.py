"""The curves beside the picture of an environment: hidden entries, the value, and the states, over an episode.

Shape legend: T steps, U units of a state.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from recurrl.video.episode import Array, Episode

DPI = 100
_MOST_CURVES = 10
"""Of the colours that differ."""
FADED = 0.8
"""How much of the way to white that is which is yet to come."""


def color_of(place: int) -> str:
    """Of the curve and the text of a hidden entry, given its place among them."""
    return f"C{place % _MOST_CURVES}"


class Panel:
    """The curves of a whole episode as pixels, of which :meth:`at` fades the future.

    Args:
        episode: of at least one step.
        width: in pixels.
        height: likewise.
    """

    def __init__(self, episode: Episode, width: int, height: int) -> None:
        self._steps = len(episode.actions)
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        self._axes = _drawn(figure, episode)
        canvas.draw()
        self._pixels: Array = np.asarray(canvas.buffer_rgba())[..., :3].copy()
        faded = 255 - (255 - self._pixels) * (1 - FADED)
        self._faded = faded.round().astype(np.uint8)

    def at(self, step: int) -> Array:
        """The panel ``[height, width, 3]`` after so many steps."""
        found, height = self._pixels.copy(), len(self._pixels)
        for axes in self._axes:
            box = axes.get_window_extent()
            x = round(box.x0 + box.width * step / self._steps)
            rows = slice(round(height - box.y1), round(height - box.y0))
            found[rows, x : round(box.x1)] = self._faded[rows, x : round(box.x1)]
            found[rows, max(x - 1, 0) : x + 1] = 40
        return found


def _drawn(figure: Figure, episode: Episode) -> list[Axes]:
    heights = [*([1.0] if episode.hidden else []), *([1.0] if episode.values is not None else [])]
    heights += [2.4 / len(episode.states) for _ in episode.states]
    all_axes = list(np.atleast_1d(figure.subplots(len(heights) or 1, height_ratios=heights or [1.0], sharex=True)))
    left = iter(all_axes)
    steps = np.arange(len(episode.actions)) + 0.5
    if episode.hidden:
        axes = next(left)
        _titled(axes, "hidden from the policy")
        for place, values in enumerate(episode.hidden.values()):
            axes.plot(steps, values, color=color_of(place), linewidth=1.6)
    if episode.values is not None:
        axes = next(left)
        _titled(axes, "value: the discounted return expected, as scaled for learning")
        axes.plot(steps, episode.values, color="black", linewidth=1.6)
    for name, state_TU in episode.states.items():
        _draw_state(figure, next(left), name, state_TU)
    if not heights:
        _titled(next(left), "return")
        all_axes[0].plot(steps, episode.returns, color="black", linewidth=1.6)
    all_axes[-1].set_xlabel("step", fontsize=12)
    for axes in all_axes:
        axes.set_xlim(0, len(steps))
        axes.tick_params(labelsize=11)
        axes.spines[["top", "right"]].set_visible(False)
    return all_axes


def _titled(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=12)
    axes.grid(alpha=0.3)


def _draw_state(figure: Figure, axes: Axes, name: str, state_TU: Array) -> None:
    limit = float(np.quantile(np.abs(state_TU), 0.99)) or 1.0
    steps, units = state_TU.shape
    image = axes.imshow(
        state_TU[:, state_TU.mean(0).argsort()[::-1]].T,
        aspect="auto",
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
        extent=(0, steps, units, 0),
        interpolation="nearest",
    )
    axes.set_title(f"{name}: {units} units, ordered by their mean", loc="left", fontsize=12)
    axes.set_yticks([])
    figure.colorbar(image, ax=axes, pad=0.01, fraction=0.04).ax.tick_params(labelsize=10)
