"""The results of runs, read from their directories, and tables of them."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from recurrl.config.composed import plain
from recurrl.config.keys import flat, flow
from recurrl.errors import require
from recurrl.reporting.runs import OUTCOME, OVER_SEEDS, Result, differing, left_out, over_seeds
from recurrl.runs.saved_config import saved_config
from recurrl.runtime.run_directory import CONFIG_FILE, read_text
from recurrl.runtime.run_summary import read_summary

OVERRIDES = ".hydra/overrides.yaml"
"""The overrides of a job of a sweep, written when it begins."""


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
    files = (file for pattern in ("*", "*/*") for file in sweep_dir.glob(f"{pattern}/{OVERRIDES}"))
    jobs = [job_in(file.parents[1], sweep_dir) for file in files]
    return sorted(jobs, key=lambda job: (len(job.name), job.name) if job.name.isdigit() else (sys.maxsize, job.name))


def job_in(folder: Path, sweep_dir: Path) -> Result:
    """The job of a sweep whose run directory is ``folder``."""
    return Result(str(folder.relative_to(sweep_dir)), folder, _overrides(folder), read_summary(folder))


def _overrides(run_dir: Path) -> dict[str, str]:
    path = run_dir / OVERRIDES
    if not path.is_file():  # its job may never have begun
        return {}
    try:
        texts = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, RecursionError):
        texts = None
    require(isinstance(texts, list), f"{path} must be a list of overrides. Correct it, or delete it to omit the job.")
    pairs = (str(text).replace("\\:", ":").partition("=") for text in texts)  # Hydra escapes colons
    return {key.lstrip("+"): value for key, _, value in pairs}


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
