"""The results of runs, read from their directories: one by one, grouped over seeds, and as tables."""

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml  # type: ignore[import-untyped]

from recurrl.config.composed import plain
from recurrl.config.keys import flat, flow
from recurrl.errors import require
from recurrl.returns import STATISTICS, interval_95, interval_text, return_format, summarized, table_row
from recurrl.runs.saved_config import saved_config
from recurrl.runtime.run_directory import CONFIG_FILE, METRICS, read_text
from recurrl.runtime.run_summary import read_summary
from recurrl.tracking.csv import Curve, curve_of, read_rows

COMPLETED, STOPPED, UNFINISHED = "completed", "stopped", "unfinished"
OUTCOME = ("return", "std", "memory zeroed", "95% interval", "frames", "frames/s", "time", "status")
"""Column headings of a table of runs."""
OVER_SEEDS = ("seeds", *STATISTICS)
"""Column headings of a table of groups."""
OVERRIDES = ".hydra/overrides.yaml"
"""The overrides of a job of a sweep, written when it begins."""
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


def results_of(paths: Sequence[Path]) -> list[Result]:
    """The runs in directories, and the jobs of the sweeps in them, with their whole configurations.

    They are named by their paths; the jobs of a sweep that is the only directory, by their numbers.

    Raises:
        ConfigError: a directory holds neither.
    """
    results = []
    for path in paths:
        is_run = (path / CONFIG_FILE).is_file()
        jobs = [Result(str(path), path, {}, read_summary(path))] if is_run else jobs_of(path)
        advice = "Pass directories that recurrl-train wrote."
        require(bool(jobs), f"{path} holds neither a run nor the jobs of a sweep. {advice}")
        results += configured(jobs)
    return results if len(paths) == 1 else [replace(result, name=str(result.directory)) for result in results]


def configured(jobs: Sequence[Result]) -> list[Result]:
    """The jobs with their whole configurations.

    A rejected job saved no configuration: it gets that of another job, with its own overrides.
    """
    saved = {}
    for job in jobs:
        if (job.directory / CONFIG_FILE).is_file():
            values = flat(plain(saved_config(job.directory).config)).items()
            saved[job.directory] = {key.removesuffix(".name"): flow(value) for key, value in values}
    other = next(iter(saved.values()), {})
    return [replace(job, settings=saved.get(job.directory, {**other, **job.settings})) for job in jobs]


def jobs_of(sweep_dir: Path) -> list[Result]:
    """The jobs of a sweep that have begun, from one or two levels below its folder, in the order of their numbers."""
    folders = [file.parents[1] for place in ("*", "*/*") for file in sweep_dir.glob(f"{place}/{OVERRIDES}")]
    jobs = [Result(str(each.relative_to(sweep_dir)), each, _overrides(each), read_summary(each)) for each in folders]
    return sorted(jobs, key=lambda job: (len(job.name), job.name) if job.name.isdigit() else (sys.maxsize, job.name))


def _overrides(run_dir: Path) -> dict[str, str]:
    path = run_dir / OVERRIDES
    try:
        texts = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, RecursionError):
        texts = None
    require(isinstance(texts, list), f"{path} must be a list of overrides. Correct it, or delete it to omit the job.")
    pairs = (str(text).replace("\\:", ":").partition("=") for text in texts)  # Hydra escapes colons
    return {key.lstrip("+"): value for key, _, value in pairs}


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
    """The groups that have more than one run, that of the highest mean return first."""
    groups = [group for group in grouped(results) if len(group.runs) > 1]
    return sorted(groups, key=lambda group: fmean(group.numbers(_RETURN) or [-math.inf]), reverse=True)


def comparison(results: Sequence[Result], heading: str) -> str:
    """Runs and their groups over seeds as JSON, the runs under the key ``heading``."""
    groups = [group.as_json() for group in over_seeds(results)]
    content = {heading: [result.as_json() for result in results], "over_seeds": groups}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def comparison_table(results: Sequence[Result], heading: str) -> str:
    """A table of runs with the settings that differ, and one over seeds if runs differ in their seeds only."""
    keys = differing(results)
    rows = ((each.name, *(each.settings.get(key, "") for key in keys), *each.cells()) for each in results)
    text = table([(heading, *keys, *OUTCOME), *rows])
    if groups := over_seeds(results):
        rows = ((*group.settings.values(), *group.cells()) for group in groups)
        text += "\n" + table([(*groups[0].settings, *OVER_SEEDS), *rows])
        text += "".join(f"{line}\n" for line in left_out(groups))
    return text


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in columns, the first of them the headings."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(lines) + "\n"
