"""The progress of a run on the terminal."""

import math
import os
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TextIO

from recurrl.returns import return_format

SWITCH = "RECURRL_PROGRESS"
"""The environment variable with the id of the only process that draws; any other value turns the line off."""


class Progress:
    """A line with the elapsed time, frames, speed, returns, time left and the last warning.

    Writes nothing to a stream that is not a terminal (a file, a pipe, a batch job's log). The cursor stays at the start
    of the line, so that a log message overwrites the line, which is then drawn again below the message.
    """

    def __init__(self, total_frames: int, stream: TextIO | None = None) -> None:
        """The stream defaults to standard error."""
        self._total_frames = total_frames
        self._stream = sys.stderr if stream is None else stream
        self._visible = self._stream.isatty() and os.environ.get(SWITCH) in (None, str(os.getpid()))
        self._latest: dict[str, float] = {}
        self._began, self._text = time.monotonic(), ""

    def update(self, frames: int, metrics: Mapping[str, float], warning: str = "") -> None:
        """Updates the state and redraws.

        A metric that is missing or NaN keeps its last value.
        """
        if not self._visible:
            return
        self._latest.update({name: value for name, value in metrics.items() if math.isfinite(value)})
        elapsed = f"{timedelta(seconds=int(time.monotonic() - self._began))} "
        self._text = elapsed + " · ".join(filter(None, [described(frames, self._total_frames, self._latest), warning]))
        self._draw("\r")

    def close(self) -> None:
        """Draws the final state and leaves it on the terminal."""
        if self._text:
            self._draw("\n")
        self._visible, self._text = False, ""

    def _draw(self, end: str) -> None:
        # Shorter than the terminal: a full line would wrap.
        text = self._text[: shutil.get_terminal_size().columns - 1]
        with suppress(OSError):  # the terminal may have been closed
            self._stream.write(f"\x1b[2K{text}{end}")  # clears the line first
            self._stream.flush()


def described(frames: int, total_frames: int, latest: Mapping[str, float]) -> str:
    """Frames, speed, returns and the time left as text; what is not known is left out."""
    speed = latest.get("time/frames_per_s", 0.0)
    parts = [f"{frames:,}/{total_frames:,} frames" + (f" at {speed:,.0f}/s" if speed > 0 else "")]
    for label, name in (("return", "train/return_mean"), ("eval", "eval/return_mean")):
        if name in latest:
            parts.append(f"{label} {latest[name]:{return_format(latest[name])}}")
    if speed > 0:
        seconds_left = max(0, total_frames - frames) / speed
        parts.append(f"{timedelta(seconds=round(seconds_left))} left")
    return " · ".join(parts)
