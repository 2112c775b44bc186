"""Metrics in ``metrics.csv`` of the run directory: one row per iteration, the first column ``frames``."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO

from recurrl.config import LoggerConfig
from recurrl.errors import ConfigError
from recurrl.runtime.atomic import atomic_write
from recurrl.runtime.run_directory import METRICS, read_text
from recurrl.tracking import FRAMES, Resumed, Settings, Tracker

Row = dict[str, float]
"""The values of an iteration by metric, and its ``frames``."""
Curve = list[tuple[int, float]]
"""Frames and values."""

_FRAME_COUNT = re.compile("[0-9]{1,15}")


class CsvTracker(Tracker):
    """Appends to a CSV file, which is closed after each row, so that a killed run loses none.

    Floats are written with all their digits. A missing metric is an empty cell. A metric that first appears later gets
    a new last column, which is empty in earlier rows.

    An existing file is continued. Rows at or after the first frame count logged here are replaced, because a resumed
    run repeats those frames.

    Raises:
        ConfigError: the file is malformed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        path.touch()
        read_rows(path)  # rejects a damaged file before training

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Appends a row, and columns for new metrics.

        Raises:
            ConfigError: a metric is named ``frames``, like the axis.
        """
        if FRAMES in metrics:
            raise ConfigError(
                f"A metric must not be named {FRAMES}, which is the axis of all metrics. Rename the metric."
            )
        row = {FRAMES: frames, **metrics}
        if not row.keys() <= set(self._columns):
            self._rewrite_for(row)
        with self._path.open("a", encoding="utf-8", newline="") as file:
            self._writer(file).writerow(row)

    def _rewrite_for(self, row: Row) -> None:
        """Rewrites the file with a column for each metric of ``row``, and the rows before it only."""
        earlier = [each for each in read_rows(self._path) if each[FRAMES] < row[FRAMES]]
        self._columns = list(dict.fromkeys(name for each in (*earlier, row) for name in each))
        with atomic_write(self._path) as file:
            writer = self._writer(file)
            writer.writeheader()
            writer.writerows(earlier)

    def _writer(self, file: TextIO) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self._columns, lineterminator="\n")


def make(options: LoggerConfig, run_dir: Path, settings: Settings, resumed: Resumed | None = None) -> CsvTracker:
    """The tracker of a run that starts in ``run_dir``, or continues there."""
    return CsvTracker(run_dir / METRICS)


def log_history(tracker: Tracker, run_dir: Path, resumed: Resumed | None) -> None:
    """Logs the rows of a run from before a resume to a destination that does not have them."""
    if resumed is None or not (run_dir / METRICS).exists():
        return
    for row in read_rows(run_dir / METRICS):
        frames = int(row.pop(FRAMES))
        if frames <= resumed.frames:
            tracker.log(frames, row)


def curve_of(rows: Iterable[Row], metric: str) -> Curve:
    """The finite values of a metric over frames."""
    points = ((int(row[FRAMES]), row.get(metric, math.nan)) for row in rows)
    return [(frames, value) for frames, value in points if math.isfinite(value)]


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of metrics, without an incomplete last line, which a crash leaves.

    Raises:
        ConfigError: the file is missing or malformed.
    """
    text = read_text(path)
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""), strict=True)
    rows: list[Row] = []
    try:
        for cells in reader:
            if None in cells or not _FRAME_COUNT.fullmatch(cells.get(FRAMES) or ""):
                raise ValueError("it has no frame count, or more cells than the header")
            frames = int(cells.pop(FRAMES))
            rows.append({FRAMES: frames, **{name: float(cell) for name, cell in cells.items() if cell}})
    except (csv.Error, ValueError) as error:
        raise ConfigError(
            f"Line {reader.line_num} of {path} is malformed: {error}. Move the file away; the run then continues with "
            "a new one."
        ) from error
    return rows
