"""The results of runs: plain data, read from their directories."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from recurrl.returns import STATISTICS, interval_95, interval_text, return_format, summarized, table_row
from recurrl.runtime.run_directory import METRICS
from recurrl.tracking.csv import Curve, curve_of, read_rows

COMPLETED, STOPPED, UNFINISHED = "completed", "stopped", "unfinished"
OUTCOME = ("return", "std", "memory zeroed", "95% interval", "frames", "frames/s", "time", "status")
"""Column headings of a table of runs."""
OVER_SEEDS = ("seeds", *STATISTICS)
"""Column headings of a table of groups."""
_RETURN = "eval_return_mean"
_WITHOUT_INFLUENCE = re.compile(
    r"resume|consistency_check|(logger|checkpoint)\b.*|evaluation\.(memory|random|every_frames)"
)
"""Keys that change neither what is learned nor the returns that are compared."""


@dataclass(frozen=True)
class Result:
    """The settings and the outcome of a run.

    Attributes:
        name: the job's number within its sweep, or the path of the run.
        directory: the run's directory.
        settings: its overrides, or all keys of its configuration, each with its value as text.
        summary: the content of ``summary.json``; empty for a run that is still running, or was killed.
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
        """True if the run was completed, or stopped by a callback."""
        return self.status in (COMPLETED, STOPPED)

    @property
    def seed(self) -> str:
        """The seed; empty if neither its summary nor its settings have one."""
        return str(self.summary.get("seed", self.settings.get("seed", "")))

    @property
    def mean_return(self) -> float | None:
        """The mean return of the last evaluation."""
        return self.summary.get(_RETURN)

    @property
    def error(self) -> str | None:
        """The error of a failed run."""
        if not self.summary:
            return "it wrote no summary: its process was killed, or is still running"
        return self.summary.get("error")

    def curve(self, metric: str) -> Curve:
        """The finite values of a metric over frames; none if the run has not written any.

        Raises:
            ConfigError: the run's ``metrics.csv`` is malformed.
        """
        path = self.directory / METRICS
        return curve_of(read_rows(path), metric) if path.is_file() else []

    def cells(self) -> tuple[str, ...]:
        """The run's row in a table with the headings :data:`OUTCOME`."""
        value = self.summary.get
        mean, std, zeroed = (value(f"eval_return_{name}") for name in ("mean", "std", "mean_zeroed_state"))
        count, speed, seconds = value("eval_episodes"), value("frames_per_s"), value("wall_time_s")
        returns: tuple[str, ...] = ("",) * 4
        if mean is not None and std is not None and count:
            interval = interval_95(mean, std, int(count))
            form = return_format(mean, std)
            numbers = ("" if each is None else f"{each:{form}}" for each in (mean, std, zeroed))
            returns = (*numbers, interval_text(interval, form, "episodes"))
        time = "" if seconds is None else str(timedelta(seconds=round(seconds)))
        return (*returns, f"{value('frames') or 0:,}", "" if speed is None else f"{speed:,.0f}", time, self.status)

    def as_json(self) -> dict[str, Any]:
        """The whole summary, for scripts."""
        named = {"name": self.name, "directory": str(self.directory), "settings": dict(self.settings)}
        return {**named, **self.summary, "status": self.status, "return": self.mean_return, "error": self.error}


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds only.

    Attributes:
        settings: the settings in which they differ from other runs.
        runs: all of them.
        seeds: the runs that the statistics count: completed, evaluated, one for each seed.
        left_out: for each run that does not count, by name, the reason.
    """

    settings: Mapping[str, str]
    runs: Sequence[Result]
    seeds: Sequence[Result]
    left_out: Mapping[str, str]

    @property
    def name(self) -> str:
        """The group's settings as text."""
        return ", ".join(f"{key}={value}" for key, value in self.settings.items()) or "all runs"

    def numbers(self, key: str) -> list[float]:
        """The numbers under a key in the summaries of the runs in ``seeds``."""
        return [float(run.summary[key]) for run in self.seeds if run.summary.get(key) is not None]

    def as_json(self) -> dict[str, Any]:
        """The settings, the seeds and :func:`recurrl.returns.summarized` over them, and what was left out."""
        summary = summarized(self.numbers(_RETURN)) if self.seeds else {}
        keys = ("returns", "mean", "std", "interval_95", "interquartile_mean", "min", "max")
        seeds, statistics = [run.seed for run in self.seeds], {key: summary.get(key) for key in keys}
        return {"settings": dict(self.settings), "seeds": seeds, **statistics, "left_out": dict(self.left_out)}

    def cells(self) -> tuple[str, ...]:
        """The group's row in a table with the headings :data:`OVER_SEEDS`."""
        statistics = table_row(self.as_json(), "seeds") if self.seeds else [""] * len(STATISTICS)
        return (str(len(self.seeds)), *statistics)


def differing(results: Sequence[Result]) -> list[str]:
    """The keys whose values differ, without those that have no influence on returns."""
    keys = dict.fromkeys(key for result in results for key in result.settings)
    relevant = (key for key in keys if not _WITHOUT_INFLUENCE.fullmatch(key))
    return [key for key in relevant if len({result.settings.get(key) for result in results}) > 1]


def grouped(results: Sequence[Result]) -> list[Group]:
    """Groups the runs by the settings (except the seed) that differ between them, in the order of their first runs."""
    keys = [key for key in differing(results) if key != "seed"]
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result.settings.get(key, "") for key in keys), []).append(result)
    return [_group(dict(zip(keys, values, strict=True)), runs) for values, runs in groups.items()]


def _group(settings: Mapping[str, str], runs: Sequence[Result]) -> Group:
    counted: dict[str, Result] = {}
    left_out = {}
    for run in runs:
        if run.status != COMPLETED or run.mean_return is None:
            left_out[run.name] = run.status if run.status != COMPLETED else "without an evaluation"
        elif (first := counted.setdefault(run.seed, run)) is not run:
            left_out[run.name] = f"{'a copy of' if run.summary == first.summary else 'the same seed as'} {first.name}"
    return Group(settings, runs, list(counted.values()), left_out)


def left_out(groups: Sequence[Group]) -> list[str]:
    """A line for each run that the statistics leave out."""
    return [f"left out: {name}: {why}" for group in groups for name, why in group.left_out.items()]


def over_seeds(results: Sequence[Result]) -> list[Group]:
    """The groups that have more than one run."""
    return [group for group in grouped(results) if len(group.runs) > 1]
