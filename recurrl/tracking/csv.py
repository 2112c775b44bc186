"""Metrics in ``metrics.csv`` of the run directory: a row an iteration, the first column ``frames``."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from recurrl.config import LoggerConfig
from recurrl.errors import ConfigError
from recurrl.runtime.atomic import atomic_write
from recurrl.runtime.run_directory import METRICS, read_text
from recurrl.tracking.trackers import FRAMES, Resumed

Row = dict[str, str]
Curve = list[tuple[int, float]]
"""Frames and values."""

_FRAME_COUNT = re.compile("[0-9]{1,18}")


class CsvTracker:
    """Appends to a CSV file and flushes each row, so that a killed run loses none.

    Floats are written with all their digits. A missing metric is an empty cell. A metric that first appears later gets
    a new last column, which is empty in earlier rows.

    With ``resumes`` the file is that of an interrupted run. Rows at or after the first frame count logged here are
    replaced, because the resumed run repeats those frames.
    """

    id = None

    def __init__(self, path: Path, resumes: bool = False) -> None:
        self._path = path
        self._columns: list[str] = []
        self._file: TextIO | None = None
        if resumes:
            # Rejects a damaged file before training.
            _read(path)
            return
        try:
            path.open("x", encoding="utf-8").close()
        except FileExistsError as error:
            raise ConfigError(
                f"{path} already exists, and the rows of two runs must not mix. Give this run a directory of its own "
                f"with hydra.run.dir=..., or continue that run with resume={path.parent}."
            ) from error

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Appends a row, and columns for new metrics."""
        row = {FRAMES: str(frames), **{name: repr(float(value)) for name, value in metrics.items()}}
        if self._file is None:
            self._columns, rows = _read(self._path)
            self._file = self._rewrite(row, [earlier for earlier in rows if int(earlier[FRAMES]) < frames])
        elif any(name not in self._columns for name in row):
            self._file.close()
            self._file = self._rewrite(row, _read(self._path)[1])
        _writer(self._file, self._columns).writerow(row)
        self._file.flush()

    def close(self, exit_code: int = 0) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def _rewrite(self, row: Row, rows: Iterable[Row]) -> TextIO:
        """Writes the given rows with a column for each cell of ``row``, and opens the file to append."""
        self._columns += [name for name in row if name not in self._columns]
        with atomic_write(self._path) as file:
            writer = _writer(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)
        return self._path.open("a", encoding="utf-8", newline="")


def make(
    options: LoggerConfig, run_dir: Path, settings: Mapping[str, Any], resumed: Resumed | None = None
) -> CsvTracker:
    """The tracker of a run that starts in ``run_dir``, or continues there if ``resume`` points into it.

    Raises:
        ConfigError: the directory holds the metrics of another run.
    """
    path = run_dir / METRICS
    return CsvTracker(path, resumes=_points_into(settings.get("resume"), run_dir) and path.exists())


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of metrics, without one that is cut off.

    Raises:
        ConfigError: the file is missing or malformed.
    """
    return _read(path)[1]


def curve_of(rows: Iterable[Row], metric: str) -> Curve:
    """The finite values of a metric over frames."""
    found = ((int(row[FRAMES]), float(row.get(metric) or math.nan)) for row in rows)
    return [(frames, value) for frames, value in found if math.isfinite(value)]


def last_frames(path: Path) -> int:
    """The frames of the last row of a file of metrics; 0 if it has none."""
    rows = read_rows(path)
    return int(rows[-1][FRAMES]) if rows else 0


def _points_into(resume: str | None, run_dir: Path) -> bool:
    if resume is None:
        return False
    return resume == "auto" or Path(resume).resolve().is_relative_to(run_dir.resolve())


def _writer(file: TextIO, columns: list[str]) -> csv.DictWriter[str]:
    return csv.DictWriter(file, columns, restval="", lineterminator="\n")


def _read(path: Path) -> tuple[list[str], list[Row]]:
    """Columns and rows of a file, without an incomplete last line, which a crash leaves.

    Raises:
        ConfigError: the file is malformed.
    """
    text = read_text(path)
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""), strict=True)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise _malformed(path, reader.line_num, str(error)) from error
    for number, row in enumerate(rows, start=2):
        if None in row or not _FRAME_COUNT.fullmatch(row.get(FRAMES) or ""):
            raise _malformed(path, number, "it has no frame count, or more cells than the header")
        for name, cell in row.items():
            if cell and not _is_number(cell):
                raise _malformed(path, number, f"{name} is {cell[:40]!r}, which is not a number")
    return list(reader.fieldnames or []), rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _malformed(path: Path, line: int, reason: str) -> ConfigError:
    return ConfigError(
        f"Line {line} of {path} is malformed: {reason}. Move the file away; the run then continues with a new one."
    )
