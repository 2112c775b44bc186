"""Writes the report of runs and sweeps."""

from collections.abc import Sequence
from pathlib import Path

from recurrl.cli.results import differing, results_of
from recurrl.reporting.page import page
from recurrl.reporting.runs import ReportedRun, metrics_rows
from recurrl.runtime.atomic import atomic_write

_NAME = "report.html"


def write_report(paths: Sequence[Path], output: Path | None = None) -> Path:
    """Writes the report, and returns its path.

    Args:
        paths: run directories, and those of sweeps.
        output: the file; None for ``report.html`` in the first of them.

    Raises:
        ConfigError: a path holds no run.
        OSError: the file cannot be written.
    """
    found = [(path, result) for path in paths for result in results_of(path)]
    results = [result for _, result in found]
    keys = [key for key in differing(results) if key != "seed"]
    runs = [
        ReportedRun(
            _name(path, result.directory, is_only=len(paths) == 1),
            result.directory,
            result.settings,
            {key: result.settings.get(key, "") for key in keys},
            result.summary,
            metrics_rows(result.directory),
        )
        for path, result in found
    ]
    title = paths[0].resolve().name if len(paths) == 1 else f"{len(runs)} runs"
    target = output or paths[0] / _NAME
    with atomic_write(target) as file:
        file.write(page(runs, f"recurrl: {title}"))
    return target


def _name(path: Path, run_dir: Path, is_only: bool) -> str:
    """Of a run in a table: below the sweep's directory if that is all there is."""
    within = run_dir.relative_to(path).as_posix()
    return within if is_only and within != "." else str(run_dir)
