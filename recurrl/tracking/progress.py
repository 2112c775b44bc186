"""A one-line progress display on the terminal."""

import math
import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TextIO

SECONDS_BETWEEN_DRAWS = 0.1
DEFAULT_WIDTH = 80
ERASE_TO_END_OF_LINE = "\x1b[K"


class Progress:
    """Rewrites one line in place: frames, speed, returns and time left.

    Writes nothing to a stream that is not a terminal (a file, a pipe, a batch job's log).
    """

    def __init__(self, total_frames: int, stream: TextIO | None = None) -> None:
        """The stream defaults to standard error."""
        self._total_frames = total_frames
        self._stream = sys.stderr if stream is None else stream
        self._visible = self._stream.isatty()
        self._frames = 0
        self._latest: dict[str, float] = {}
        self._is_drawn = True
        self._drawn_at = -math.inf

    def update(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Updates the state, and redraws unless the last redraw was less than a tenth of a second ago.

        A metric that is missing or NaN keeps its last value.
        """
        if not self._visible:
            return
        self._frames = frames
        self._latest.update({name: value for name, value in metrics.items() if math.isfinite(value)})
        self._is_drawn = False
        if time.monotonic() - self._drawn_at >= SECONDS_BETWEEN_DRAWS:
            self._draw()

    def close(self) -> None:
        """Draws the final state and ends the line."""
        if not self._is_drawn:
            self._draw()
        if self._drawn_at > -math.inf:
            self._stream.write("\n")
            self._stream.flush()
        self._visible = False
        self._drawn_at = -math.inf

    def _draw(self) -> None:
        # Some terminals wrap a full-width line, which then cannot be rewritten.
        line = self._line()[: _width(self._stream) - 1]
        self._stream.write(f"\r{line}{ERASE_TO_END_OF_LINE}")
        self._stream.flush()
        self._is_drawn = True
        self._drawn_at = time.monotonic()

    def _line(self) -> str:
        parts = [f"{self._frames:,}/{self._total_frames:,} frames ({self._frames / self._total_frames:.0%})"]
        speed = self._latest.get("time/frames_per_s", 0.0)
        if speed > 0:
            parts.append(f"{speed:,.0f} frames/s")
        for label, name in (("return", "train/return_mean"), ("eval return", "eval/return_mean")):
            if name in self._latest:
                parts.append(f"{label} {self._latest[name]:.2f}")
        if speed > 0:
            seconds_left = max(0, self._total_frames - self._frames) / speed
            parts.append(f"{timedelta(seconds=round(seconds_left))} left")
        return " | ".join(parts)


def _width(stream: TextIO) -> int:
    """Columns of the stream's terminal, which may report 0 or raise if it does not know."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
    except OSError:
        return DEFAULT_WIDTH
