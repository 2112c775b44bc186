"""What a report shows of runs: plain data, read from their directories."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurrl.runtime.run_directory import METRICS

FRAMES = "frames"
Curve = list[tuple[int, float]]
"""Frames and values."""


@dataclass(frozen=True)
class ReportedRun:
    """A run.

    Attributes:
        name: its path, or its number within a sweep.
        directory: the run's.
        settings: its keys and values as text.
        differing: those of them that differ between the runs of the report, without the seed.
        summary: the content of ``summary.json``; empty for a run that wrote none.
        rows: those of ``metrics.csv``.
    """

    name: str
    directory: Path
    settings: Mapping[str, str]
    differing: Mapping[str, str]
    summary: Mapping[str, Any]
    rows: Sequence[Mapping[str, str]]

    @property
    def group(self) -> str:
        """Names the runs that differ from this one in their seeds only."""
        return ", ".join(f"{key}={value}" for key, value in self.differing.items()) or "all runs"

    @property
    def status(self) -> str:
        """``completed``, ``stopped``, ``interrupted``, ``failed``, or ``unfinished`` without a summary."""
        return str(self.summary.get("status", "unfinished"))

    def number(self, key: str) -> float | None:
        """A number of the summary."""
        value = self.summary.get(key)
        return None if value is None else float(value)

    def curve(self, metric: str) -> Curve:
        """The finite values of a metric over frames."""
        cells = ((row[FRAMES], row.get(metric)) for row in self.rows)
        found = [(int(frames), float(cell)) for frames, cell in cells if cell]
        return [(frames, value) for frames, value in found if math.isfinite(value)]


def metrics_rows(run_dir: Path) -> list[dict[str, str]]:
    """The complete rows of a run's ``metrics.csv``; none if it has not written any."""
    path = run_dir / METRICS
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        # The last line of a run that is still going, or was killed, may be cut off.
        lines = [line for line in file if line.endswith("\n")]
    return [row for row in csv.DictReader(lines) if None not in row.values()]


def grouped(runs: Sequence[ReportedRun]) -> dict[str, list[ReportedRun]]:
    """The runs by group, in the order of their first ones."""
    groups: dict[str, list[ReportedRun]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return groups
