"""Returns on suites of tasks: one recipe, many tasks, seeds and cells.

Every combination of task, cell and seed is a run in a separate folder, as many at a time as there are cores. Finished
runs are kept: the same command continues where it was stopped. The report has one table and one picture per suite.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from benchmarks.command_line import add_output, publish
from benchmarks.returns_report import draw, report, result, verdict
from benchmarks.suites import EVALUATIONS, PEER, PEER_SECONDS, SUITES, Job, Task, chosen

PEER_SEEDS = 3
QUICK_SEEDS = 3
INSTALLED_BY = {"popgym": "popgym", "minigrid": "minigrid", "box2d": "Box2D", "mujoco": "mujoco"}
"""The module that shows whether an extra is installed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``benchmark.py returns``."""
    names = ", ".join(path.stem for path in SUITES)
    parser.add_argument("--suite", default="memory", help=f"of {names}, separated by commas, or all: %(default)s")
    parser.add_argument("--tasks", help="names, separated by commas, of any suite; default: those of the suite")
    parser.add_argument("--seeds", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--cells", default="gru,none", help="gru, lstm, mingru, none, sb3_contrib: %(default)s")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time; default: all cores")
    parser.add_argument("--quick", action="store_true", help="few tasks, three seeds: are the thresholds reached here?")
    parser.add_argument("--runs", type=Path, default=Path("outputs/returns"), help="folder of the runs: %(default)s")
    add_output(parser, "returns.md", "pictures")
    parser.add_argument("--report", action="store_true", help="start no runs; report those that are finished")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="for every run, to compare another recipe")


def run(arguments: argparse.Namespace) -> None:
    """Trains what is not finished yet, and reports."""
    selection = chosen(arguments.suite.split(","), arguments.tasks and arguments.tasks.split(","), arguments.quick)
    tasks = dict.fromkeys(task for suite in selection.values() for task in suite)
    seeds = QUICK_SEEDS if arguments.quick else arguments.seeds
    jobs = [Job(task, cell, seed) for seed in range(seeds) for task in tasks for cell in arguments.cells.split(",")]
    jobs = [job for job in jobs if job.cell != PEER or (job.task.sb3_contrib is not None and job.seed < PEER_SEEDS)]
    if not arguments.report:
        missing = [task for task in tasks if not _is_installed(task)]
        possible = [job for job in jobs if job.task not in missing]
        train(possible, arguments.runs, arguments.jobs, arguments.overrides)
    results = {job: finished for job in jobs if (finished := result(job.folder(arguments.runs))) is not None}
    publish(report(selection, results, arguments.overrides), arguments.output, "returns.md")
    if arguments.output is not None:
        draw(selection, results, arguments.output)
    if arguments.quick:
        sys.stdout.write(verdict(jobs, results))


def _is_installed(task: Task) -> bool:
    if task.extra is None or importlib.util.find_spec(INSTALLED_BY[task.extra]) is not None:
        return True
    sys.stderr.write(f"{task.name} is left out; it needs pip install -e '.[{task.extra}]'\n")
    return False


def train(jobs: Sequence[Job], root: Path, workers: int, overrides: Sequence[str]) -> None:
    """Runs the jobs that are not finished, ``workers`` at a time."""
    waiting = [job for job in jobs if result(job.folder(root)) is None]
    with ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(_train_one, job, root, overrides): job for job in waiting}
        try:
            for done, future in enumerate(as_completed(running), len(jobs) - len(waiting) + 1):
                job = running[future]
                if not future.result():
                    sys.stderr.write(f"\rfailed: {job.folder(root)}, see error.log there\033[K\n")
                sys.stderr.write(f"\r{done}/{len(jobs)} runs, last {job.task.name} {job.cell} {job.seed}\033[K")
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    sys.stderr.write("\n")


def _train_one(job: Job, root: Path, overrides: Sequence[str]) -> bool:
    folder = job.folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    if job.cell == PEER:
        arguments = (job.task.name, job.seed, job.task.frames // EVALUATIONS, folder, PEER_SECONDS)
        command = [sys.executable, "-m", "benchmarks.peers.sb3_training", *map(str, arguments)]
    else:
        command = [sys.executable, "-m", "recurrl", *job.overrides(root), *overrides]
    paths = os.pathsep.join((str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")))  # of benchmarks.noise
    with (folder / "error.log").open("w", encoding="utf-8") as log:
        environment = {**os.environ, "PYTHONPATH": paths}
        return subprocess.run(command, stdout=log, stderr=log, env=environment, check=False).returncode == 0
