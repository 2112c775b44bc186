"""The results of runs: plain data, read from their directories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from recurrl.returns import summarized
from recurrl.runtime.run_directory import METRICS
from recurrl.tracking.csv import Curve, Row, curve_of, read_rows

COMPLETED, STOPPED, UNFINISHED = "completed", "stopped", "unfinished"
_RETURN = "eval_return_mean"


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
        return self.summary.get(_RETURN)

    @property
    def error(self) -> str | None:
        """The error of a failed run."""
        if not self.summary:
            return "it wrote no summary: its process was killed, or is still running"
        return self.summary.get("error")

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of ``metrics.csv``; none if it has not written any.

        Raises:
            ConfigError: the file is malformed.
        """
        path = self.directory / METRICS
        return read_rows(path) if path.is_file() else []

    def curve(self, metric: str) -> Curve:
        """The finite values of a metric over frames."""
        return curve_of(self.rows, metric)

    def as_json(self) -> dict[str, Any]:
        """The result for scripts."""
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

    def statistics(self) -> dict[str, Any]:
        """Statistics over seeds of the return of the last evaluation, see :func:`recurrl.returns.summarized`."""
        return summarized(self.numbers(_RETURN))

    def as_json(self) -> dict[str, Any]:
        """The settings, the seeds and the statistics over them, for scripts."""
        keys = ("returns", "mean", "std", "interval_95", "interquartile_mean")
        found = self.statistics()
        seeds = [run.settings.get("seed", "") for run in self.runs]
        return {"settings": dict(self.settings), "seeds": seeds, **{key: found[key] for key in keys}}


def settings_line(settings: Mapping[str, str]) -> str:
    """Settings in a line."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def differing(results: Sequence[Result]) -> list[str]:
    """The keys whose values differ, without those that do not concern training."""
    keys = dict.fromkeys(key for result in results for key in result.settings)
    relevant = (key for key in keys if key != "resume" and key.partition(".")[0] != "logger")
    return [key for key in relevant if len({result.settings.get(key) for result in results}) > 1]


def grouped(results: Sequence[Result]) -> list[Group]:
    """The runs by the settings other than the seed that differ between them, in the order of their first ones."""
    keys = [key for key in differing(results) if key != "seed"]
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result.settings.get(key, "") for key in keys), []).append(result)
    return [Group(dict(zip(keys, values, strict=True)), runs) for values, runs in groups.items()]


def over_seeds(results: Sequence[Result]) -> list[Group]:
    """The completed runs of each group in which there are several, all with different seeds."""
    found = []
    for group in grouped(results):
        runs = [run for run in group.runs if run.status == COMPLETED and run.mean_return is not None]
        if len({run.settings.get("seed") for run in runs}) == len(runs) > 1:
            found.append(Group(group.settings, runs))
    return found
