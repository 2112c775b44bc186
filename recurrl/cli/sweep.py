"""A sweep as a whole: what is set up before its jobs, and the tables at its end.

The jobs may run in other processes or on other machines, so their results are read from their directories.
"""

import csv
import itertools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hydra.core.utils import env_override
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from recurrl import STARTED
from recurrl.cli.overrides import parsed
from recurrl.cli.results import OVERRIDES, comparison_table, configured, jobs_of
from recurrl.reporting.runs import Result, differing, over_seeds
from recurrl.runtime.atomic import atomic_write
from recurrl.runtime.report import write_summary
from recurrl.runtime.run_directory import SUMMARY
from recurrl.tracking.progress import SWITCH, bars, is_shown

_SECONDS_BETWEEN_LOOKS = 0.5
_begun = itertools.count()
_open = ExitStack()
"""Closed when the command ends: the display of its sweep, and then the report."""


class BeforeSweep(Callback):
    """Gives joblib a number of processes that suits the machine, and begins to follow the sweep."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Called with the configuration of the sweep, before its first job."""
        # joblib's default is as many as there are cores, whatever the threads of each.
        if OmegaConf.select(config, "hydra.launcher.n_jobs") == -1:
            config.hydra.launcher.n_jobs = jobs_at_once(config.num_threads)
        folder = Path(config.hydra.sweep.dir).absolute()
        _open.callback(_report, folder)
        # Jobs in this process, one after another, draw their own bars.
        in_parallel = not config.hydra.launcher._target_.endswith("BasicLauncher")
        if in_parallel and is_shown(sys.stderr):
            _open.enter_context(display(folder, _count(config)))


def jobs_at_once(num_threads: int | None) -> int:
    """How many jobs with these threads the cores of this process suffice for; at least one."""
    cores = len(os.sched_getaffinity(0))
    return max(1, cores // (num_threads or cores))


@contextmanager
def followed() -> Iterator[None]:
    """Reports the sweep that starts within the block, if one does, however it ends."""
    with _open:
        yield


def _count(config: DictConfig) -> int | None:
    """The number of jobs of a sweep; None if it is not known."""
    if "n_trials" in config.hydra.sweeper:
        return config.hydra.sweeper.n_trials
    sweeps = [each for each in parsed(list(config.hydra.overrides.task)) if each.is_sweep_override()]
    known = all(each.is_choice_sweep() or each.is_range_sweep() for each in sweeps)
    return math.prod(len(list(each.sweep_string_iterator())) for each in sweeps) if known else None


@contextmanager
def display(folder: Path, count: int | None) -> Iterator[None]:
    """Shows on the terminal how many jobs have ended while the block runs, and the best return.

    Args:
        folder: the sweep's.
        count: its number of jobs, if that is known.
    """
    ended = threading.Event()

    def draw() -> None:
        while True:
            is_last = ended.wait(_SECONDS_BETWEEN_LOOKS)
            done = [job for job in jobs_of(folder) if job.summary]
            shown.update(task, completed=len(done), description=_described(done, count))
            shown.refresh()
            if is_last:
                return

    # The switch is for the jobs, also those in other processes.
    with env_override({SWITCH: "off"}), bars(sys.stderr) as shown:
        task = shown.add_task("", total=count)
        thread = threading.Thread(target=draw, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _described(done: list[Result], count: int | None) -> str:
    failed = sum(not job.has_ended_well for job in done)
    returns = [job.mean_return for job in done if job.mean_return is not None]
    parts = [f"{len(done)}{'' if count is None else f' of {count}'} jobs ended"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"best return {max(returns):.1f}"] if returns else []
    return " · ".join(parts)


def job_started() -> float:
    """When the job that begins was started, seconds since the epoch: the first of a process with the process."""
    return time.time() if next(_begun) else STARTED


@contextmanager
def recorded(run_dir: Path, overrides: list[str]) -> Iterator[None]:
    """Records the overrides of a job that begins, and the error of one that is refused before it writes a summary."""
    (run_dir / OVERRIDES).parent.mkdir(exist_ok=True)
    with atomic_write(run_dir / OVERRIDES) as file:
        OmegaConf.save(OmegaConf.create(overrides), file)
    try:
        yield
    except Exception as error:
        if not (run_dir / SUMMARY).exists():
            write_summary(run_dir, {"status": "failed", "frames": 0, "error": f"{type(error).__name__}: {error}"})
        raise


def _report(folder: Path) -> None:
    """Prints and writes the results of a sweep, and names the jobs that failed."""
    jobs = jobs_of(folder)
    if not jobs:
        return
    sys.stdout.write(f"\n{comparison_table(jobs, 'job')}\n")
    sys.stdout.flush()
    failed = [job for job in jobs if not job.has_ended_well]
    sys.stderr.write(f"{len(jobs) - len(failed)} of {len(jobs)} jobs completed\n")
    keys = differing(jobs)
    for job in failed:
        settings = " ".join(f"{key}={value}" for key, value in job.settings.items() if key in keys or not keys)
        sys.stderr.write(f"{job.status}: {job.name}: {settings or '(defaults)'}: {job.error or 'see its log'}\n")
    _write(folder, jobs)
    from recurrl.reporting.page import write_report  # plotly takes half a second

    page = write_report(list(map(configured, jobs)), [folder])
    sys.stderr.write(f"The table is also in {folder}/sweep.json and sweep.csv, with figures in {page}.\n")


def _write(folder: Path, jobs: list[Result]) -> None:
    found = {"jobs": [job.as_json() for job in jobs], "over_seeds": [group.as_json() for group in over_seeds(jobs)]}
    with atomic_write(folder / "sweep.json") as file:
        json.dump(found, file, indent=2, ensure_ascii=False)
        file.write("\n")
    keys = differing(jobs)
    rows = [job.as_json() for job in jobs]
    columns = [name for name in rows[0] if name not in ("name", "settings")]
    with atomic_write(folder / "sweep.csv") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["job", *keys, *columns])
        for row in rows:
            writer.writerow([row["name"], *(row["settings"].get(key, "") for key in keys), *map(row.get, columns)])
