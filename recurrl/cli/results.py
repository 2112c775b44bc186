"""The results of runs, read from their directories, and tables of them."""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

import yaml  # type: ignore[import-untyped]

from recurrl.cli.help import flow
from recurrl.cli.saved_config import saved_config
from recurrl.config.composed import plain
from recurrl.config.keys import flat
from recurrl.errors import ConfigError
from recurrl.runtime.run_directory import CONFIG_FILE, SUMMARY, read_text

OVERRIDES = ".hydra/overrides.yaml"
"""The overrides of a job of a sweep, written when it begins."""
COMPLETED, STOPPED, UNFINISHED = "completed", "stopped", "unfinished"
_OUTCOME = ("return", "95% interval", "frames", "time", "status")
_MOST_COLUMNS = 5
"""More settings that differ get a table of their own, with a row for each."""
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
    def mean_return(self) -> float | None:
        """The mean return of the last evaluation."""
        return self.summary.get("eval_return_mean")

    @property
    def error(self) -> str | None:
        """What the run failed with."""
        if not self.summary:
            return "it wrote no summary: its process was killed, or is still running"
        return self.summary.get("error")

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

    def cells(self) -> tuple[str, ...]:
        """Return, interval of its mean over episodes, frames, time and status, as text."""
        mean, seconds = self.mean_return, self.summary.get("wall_time_s")
        std, count = self.summary.get("eval_return_std"), self.summary.get("eval_episodes") or 0
        interval = ""
        if mean is not None and std is not None and count > 1:
            # The deviation of a summary is that of its episodes, not an estimate for others.
            interval = _interval_text(interval_95(mean, std * math.sqrt(count / (count - 1)), count))
        return (
            "" if mean is None else f"{mean:.1f}",
            interval,
            f"{self.summary.get('frames', 0):,}",
            "" if seconds is None else str(timedelta(seconds=round(seconds))),
            self.status,
        )


@dataclass(frozen=True)
class Group:
    """Completed runs that differ in their seeds only."""

    settings: Mapping[str, str]
    seeds: Sequence[str]
    returns: Sequence[float]

    def as_json(self) -> dict[str, Any]:
        """For scripts: with the mean over seeds, their standard deviation, and the 95% interval of the mean."""
        mean, std = fmean(self.returns), stdev(self.returns)
        low, high = interval_95(mean, std, len(self.returns))
        return {
            "settings": dict(self.settings),
            "seeds": list(self.seeds),
            "returns": list(self.returns),
            "mean": mean,
            "std": std,
            "interval_95": [low, high],
        }

    def cells(self) -> tuple[str, ...]:
        """The same as text, with the number of seeds."""
        found = self.as_json()
        numbers = (f"{found[key]:.1f}" for key in ("mean", "std"))
        return (*self.settings.values(), str(len(self.seeds)), *numbers, _interval_text(found["interval_95"]))


def results_of(path: Path) -> list[Result]:
    """The run in a directory, with its whole configuration, or the jobs of the sweep in it.

    Raises:
        ConfigError: there is neither.
    """
    if (path / CONFIG_FILE).is_file():
        settings = {key: flow(value) for key, value in flat(plain(saved_config(path))).items()}
        shortened = {key.removesuffix(".name"): value for key, value in settings.items()}
        return [Result(str(path), path, shortened, _summary(path))]
    if jobs := jobs_of(path):
        return [
            result
            for job in jobs
            for result in (results_of(job.directory) if (job.directory / CONFIG_FILE).is_file() else [job])
        ]
    raise ConfigError(f"{path} holds neither a run nor the jobs of a sweep. Give directories that recurrl-train wrote.")


def jobs_of(sweep_dir: Path) -> list[Result]:
    """The jobs of a sweep that have begun, in the order of their numbers, with their overrides."""
    jobs = [job_in(folder, sweep_dir) for folder in job_folders(sweep_dir)]
    return sorted(jobs, key=lambda job: (len(job.name), job.name) if job.name.isdigit() else (sys.maxsize, job.name))


def job_folders(sweep_dir: Path) -> list[Path]:
    """The run directories of the jobs that have begun: folders of a sweep's, or of folders in it."""
    return [path.parents[1] for pattern in ("*", "*/*") for path in sweep_dir.glob(f"{pattern}/{OVERRIDES}")]


def job_in(folder: Path, sweep_dir: Path) -> Result:
    """The job of a sweep with this run directory."""
    return Result(str(folder.relative_to(sweep_dir)), folder, _overrides(folder), _summary(folder))


def _overrides(run_dir: Path) -> dict[str, str]:
    path = run_dir / OVERRIDES
    texts = yaml.safe_load(read_text(path)) if path.is_file() else []  # its job may never have begun
    pairs = (str(text).replace("\\:", ":").partition("=") for text in texts)  # Hydra escapes colons
    return {key.lstrip("+"): value for key, _, value in pairs}


def _summary(run_dir: Path) -> dict[str, Any]:
    path = run_dir / SUMMARY
    try:
        found: dict[str, Any] = json.loads(read_text(path)) if path.is_file() else {}
    except ValueError as error:
        raise ConfigError(f"{path} was not written by a run: {error}. Delete it.") from error
    return found


def differing(results: Sequence[Result]) -> list[str]:
    """The keys whose values differ, without those that do not concern training."""
    keys = dict.fromkeys(key for result in results for key in result.settings)
    concerned = (key for key in keys if key != "resume" and key.partition(".")[0] != "logger")
    return [key for key in concerned if len({result.settings.get(key) for result in results}) > 1]


def over_seeds(results: Sequence[Result]) -> list[Group]:
    """Groups of at least two completed runs that differ in their seeds only."""
    keys = [key for key in differing(results) if key != "seed"]
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        if result.status == COMPLETED and result.mean_return is not None:
            groups.setdefault(tuple(result.settings.get(key, "") for key in keys), []).append(result)
    return [
        Group(
            dict(zip(keys, values, strict=True)),
            [result.settings.get("seed", "") for result in group],
            [result.summary["eval_return_mean"] for result in group],
        )
        for values, group in groups.items()
        if len({result.settings.get("seed") for result in group}) == len(group) > 1
    ]


def interval_95(mean: float, std: float, count: int) -> tuple[float, float]:
    """The 95% interval of the mean of ``count`` values, at least two, by Student's t; ``std`` is the sample's."""
    degrees, z = count - 1, NormalDist().inv_cdf(0.975)
    if degrees <= len(_T_975):
        t = _T_975[degrees - 1]
    else:  # Abramowitz and Stegun 26.7.5
        t = z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    half = t * std / math.sqrt(count)
    return mean - half, mean + half


def text_of(results: Sequence[Result], heading: str) -> str:
    """A table of runs with the settings that differ, and one over seeds where there are several."""
    keys = differing(results)
    columns = {key: [result.settings.get(key, "") for result in results] for key in keys}
    names = [result.name for result in results]
    if len(keys) <= _MOST_COLUMNS:
        rows = zip(names, *columns.values(), *zip(*(result.cells() for result in results), strict=True), strict=True)
        text = table([(heading, *keys, *_OUTCOME), *rows])
    else:
        text = table([(heading, *_OUTCOME), *((result.name, *result.cells()) for result in results)])
        text += "\n" + table([("what differs", *names), *((key, *values) for key, values in columns.items())])
    groups = over_seeds(results)
    if not groups:
        return text
    heads = (*groups[0].settings, "seeds", "mean return", "std", "95% interval")
    return f"{text}\n{table([heads, *(group.cells() for group in groups)])}"


def _interval_text(interval: Iterable[float]) -> str:
    return " to ".join(f"{end:.1f}" for end in interval)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in columns, the first of them the headings."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(lines) + "\n"
