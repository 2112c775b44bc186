"""The progress of a sweep on the terminal: a bar for the sweep, and one for each running job."""

from __future__ import annotations

import csv
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.utils import env_override

from recurrl.cli.results import job_folders, job_in
from recurrl.reporting.runs import Result, differing
from recurrl.runtime.run_directory import CONFIG_FILE, METRICS
from recurrl.tracking.progress import SWITCH, bars, described

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_SECONDS_BETWEEN_LOOKS = 0.5
_TAIL_BYTES = 1 << 16
_TOTAL = re.compile(r"^total_frames: (\d+)$", re.MULTILINE)


@contextmanager
def display(folder: Path, count: int | None) -> Iterator[None]:
    """Shows the jobs in the folder of a sweep while the block runs.

    Args:
        folder: the sweep's.
        count: its number of jobs, if that is known.
    """
    ended = threading.Event()
    # For the jobs, also those in other processes.
    with env_override({SWITCH: "off"}), bars(sys.stderr) as shown:
        thread = threading.Thread(target=_draw, args=(shown, folder, count, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _draw(shown: Bars, folder: Path, count: int | None, ended: threading.Event) -> None:
    jobs: dict[Path, Result] = {}
    sweep = shown.add_task("", total=count)
    tasks: dict[Path, TaskID] = {}
    while True:
        is_last = ended.wait(_SECONDS_BETWEEN_LOOKS)
        for run_dir in job_folders(folder):
            if run_dir not in jobs or not jobs[run_dir].summary:
                jobs[run_dir] = job_in(run_dir, folder)
        running = {run_dir for run_dir, job in jobs.items() if not job.summary}
        for run_dir in tasks.keys() - running:
            shown.remove_task(tasks.pop(run_dir))
        keys = differing(list(jobs.values()))
        for run_dir in running:
            if run_dir not in tasks:
                tasks[run_dir] = shown.add_task("", total=None)
            frames, total, text = _state(run_dir)
            settings = " ".join(f"{key}={jobs[run_dir].settings.get(key, '')}" for key in keys)
            line = " · ".join(filter(None, [f"#{jobs[run_dir].name} {settings}".rstrip(), text]))
            shown.update(tasks[run_dir], completed=frames, total=total, description=line)
        done = [job for job in jobs.values() if job.summary]
        shown.update(sweep, completed=len(done), description=_of_all(done, count))
        shown.refresh()
        if is_last:
            return


def _of_all(done: list[Result], count: int | None) -> str:
    failed = sum(not job.has_ended_well for job in done)
    returns = [job.mean_return for job in done if job.mean_return is not None]
    parts = [f"{len(done)}{'' if count is None else f' of {count}'} jobs ended"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"best return {max(returns):.1f}"] if returns else []
    return " · ".join(parts)


def _state(run_dir: Path) -> tuple[int, int | None, str]:
    """Frames so far and in all of a running job, and its speed and returns as text."""
    try:
        total = _TOTAL.search((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
        with (run_dir / METRICS).open("rb") as file:
            header = file.readline().decode()
            file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = [line for line in file.read().decode().splitlines(keepends=True) if line.endswith("\n")]
    except FileNotFoundError:  # it has just begun
        return 0, None, ""
    if total is None or not lines:
        return 0, None, ""
    names, values = csv.reader([header, lines[-1]])
    latest = {name: float(value) for name, value in zip(names, values, strict=False) if value}
    frames = int(latest["frames"])
    return frames, int(total[1]), described(frames, int(total[1]), latest)
