"""The progress of a run on the terminal."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

SECONDS_BETWEEN_DRAWS = 0.1
SWITCH = "RECURRL_PROGRESS"
"""The environment variable that turns bars off, for processes whose terminal another one draws on."""


class Progress:
    """A bar with frames, speed, returns, elapsed time, time left and the last warning.

    Writes nothing to a stream that is not a terminal (a file, a pipe, a batch job's log).
    """

    def __init__(self, total_frames: int, stream: TextIO | None = None) -> None:
        """The stream defaults to standard error."""
        self._total_frames = total_frames
        self._stream = sys.stderr if stream is None else stream
        self._visible = self._stream.isatty() and os.environ.get(SWITCH) != "off"
        self._latest: dict[str, float] = {}
        self._bars: Bars | None = None
        self._open = ExitStack()
        self._drawn_at = -math.inf

    def update(self, frames: int, metrics: Mapping[str, float], warning: str = "") -> None:
        """Updates the state, and redraws unless the last redraw was less than a tenth of a second ago.

        A metric that is missing or NaN keeps its last value.
        """
        if not self._visible:
            return
        if self._bars is None:
            self._bars = self._open.enter_context(_bars(self._stream))
            self._bars.add_task("", total=self._total_frames)
        self._latest.update({name: value for name, value in metrics.items() if math.isfinite(value)})
        text = " · ".join(filter(None, [described(frames, self._total_frames, self._latest), warning]))
        self._bars.update(self._bars.task_ids[0], completed=frames, description=text)
        if time.monotonic() - self._drawn_at >= SECONDS_BETWEEN_DRAWS:
            self._bars.refresh()
            self._drawn_at = time.monotonic()

    def close(self) -> None:
        """Draws the final state and leaves it on the terminal."""
        self._open.close()
        self._visible = False


def described(frames: int, total_frames: int, latest: Mapping[str, float]) -> str:
    """Frames, speed, returns and the time left as text; what is not known is left out."""
    speed = latest.get("time/frames_per_s", 0.0)
    parts = [f"{frames:,}/{total_frames:,} frames" + (f" at {speed:,.0f}/s" if speed > 0 else "")]
    for label, name in (("return", "train/return_mean"), ("eval", "eval/return_mean")):
        if name in latest:
            parts.append(f"{label} {latest[name]:.2f}")
    if speed > 0:
        seconds_left = max(0, total_frames - frames) / speed
        parts.append(f"{timedelta(seconds=round(seconds_left))} left")
    return " · ".join(parts)


@contextmanager
def _bars(stream: TextIO) -> Iterator[Bars]:
    """A bar that stays below what is printed and logged while the block runs."""
    # Only for terminals: others need not wait for its import.
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TimeElapsedColumn(), BarColumn(10), TextColumn("{task.description}", markup=False))
    before = (sys.stdout, sys.stderr)
    with Bars(*columns, console=Console(file=stream), auto_refresh=False, redirect_stdout=before[0].isatty()) as shown:
        # The handlers of the log write to the streams that the bars have replaced.
        replaced = dict(zip(before, (sys.stdout, sys.stderr), strict=True))
        handlers = [(each, each.stream) for each in _stream_handlers() if each.stream in before]
        try:
            for handler, old in handlers:
                handler.setStream(replaced[old])
            yield shown
        finally:
            for handler, old in handlers:
                handler.setStream(old)


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    return [each for logger in loggers for each in logger.handlers if isinstance(each, logging.StreamHandler)]
