"""The results of runs: plain data, read from their directories."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

from recurrl.runtime.run_directory import METRICS
from recurrl.tracking.csv import Curve, Row, curve_of, read_rows

COMPLETED, STOPPED, UNFINISHED = "completed", "stopped", "unfinished"
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t for a two-sided interval of 95%, by degrees of freedom from 1."""


@dataclass(frozen=True)
class Result:
    """A run.

    Attributes:
        name: for tables: the job's number within its sweep, or the path of the run.
        directory: the run's.
        settings: its overrides, or all keys of its configuration, each with its value as text.
        summary: the content of ``summary.json``; empty for a run that runs still, or was killed.
    """

    name: str
    directory: Path
    settings: Mapping[str, str]
    summary: Mapping[str, Any]

    @property
    def status(self) -> str:
        """``completed``, ``stopped``, ``interrupted``, ``failed``, or ``unfinished`` without a summary."""
        return str(self.summary.get("status", UNFINISHED))

    @property
    def has_ended_well(self) -> bool:
        """True if it was completed, or stopped by a callback."""
        return self.status in (COMPLETED, STOPPED)

    @property
    def mean_return(self) -> float | None:
        """The mean return of the last evaluation."""
        return self.summary.get("eval_return_mean")

    @property
    def error(self) -> str | None:
        """What the run failed with."""
        if not self.summary:
            return "it wrote no summary: its process was killed, or is still running"
        return self.summary.get("error")

    @cached_property
    def rows(self) -> list[Row]:
        """Those of ``metrics.csv``; none if it has not written any.

        Raises:
            ConfigError: the file is malformed.
        """
        path = self.directory / METRICS
        return read_rows(path) if path.is_file() else []

    def curve(self, metric: str) -> Curve:
        """The finite values of a metric over frames."""
        return curve_of(self.rows, metric)

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        keys = ("eval_return_std", "eval_episodes", "frames", "wall_time_s", "error")
        return {
            "name": self.name,
            "directory": str(self.directory),
            "settings": dict(self.settings),
            "status": self.status,
            "return": self.mean_return,
            **{key: self.summary.get(key) for key in keys},
        }


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds only.

    Attributes:
        settings: by which they differ from other runs.
        runs: at least one.
    """

    settings: Mapping[str, str]
    runs: Sequence[Result]

    @property
    def name(self) -> str:
        """Its settings as text."""
        return settings_line(self.settings) or "all runs"

    def numbers(self, key: str) -> list[float]:
        """The numbers that the runs' summaries have under a key."""
        return [float(run.summary[key]) for run in self.runs if run.summary.get(key) is not None]

    def as_json(self) -> dict[str, Any]:
        """For scripts, if there are several: returns, with their mean and its 95% interval."""
        returns = self.numbers("eval_return_mean")
        mean, std = fmean(returns), stdev(returns)
        return {
            "settings": dict(self.settings),
            "seeds": [run.settings.get("seed", "") for run in self.runs],
            "returns": returns,
            "mean": mean,
            "std": std,
            "interval_95": list(interval_95(mean, std, len(returns))),
        }


def settings_line(settings: Mapping[str, str]) -> str:
    """Settings in a line."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def differing(results: Sequence[Result]) -> list[str]:
    """The keys whose values differ, without those that do not concern training."""
    keys = dict.fromkeys(key for result in results for key in result.settings)
    concerned = (key for key in keys if key != "resume" and key.partition(".")[0] != "logger")
    return [key for key in concerned if len({result.settings.get(key) for result in results}) > 1]


def grouped(results: Sequence[Result]) -> list[Group]:
    """The runs by the settings other than the seed that differ between them, in the order of their first ones."""
    keys = [key for key in differing(results) if key != "seed"]
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result.settings.get(key, "") for key in keys), []).append(result)
    return [Group(dict(zip(keys, values, strict=True)), runs) for values, runs in groups.items()]


def over_seeds(results: Sequence[Result]) -> list[Group]:
    """The completed runs of each group in which there are several, each with a seed of its own."""
    found = []
    for group in grouped(results):
        runs = [run for run in group.runs if run.status == COMPLETED and run.mean_return is not None]
        if len({run.settings.get("seed") for run in runs}) == len(runs) > 1:
            found.append(Group(group.settings, runs))
    return found


def interval_95(mean: float, std: float, count: int) -> tuple[float, float]:
    """The 95% interval of the mean of ``count`` values, at least two, by Student's t; ``std`` is the sample's.

    Right for as few as two values, if they are about normal. A bootstrap's would hold the mean of two normal values in
    52% of cases, of three in 74%, of five in 82%.
    """
    degrees, z = count - 1, NormalDist().inv_cdf(0.975)
    if degrees <= len(_T_975):
        t = _T_975[degrees - 1]
    else:  # Abramowitz and Stegun 26.7.5
        t = z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    half = t * std / math.sqrt(count)
    return mean - half, mean + half
