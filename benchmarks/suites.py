"""Suites of tasks: each yaml in benchmarks/suite is a suite, and one recipe learns all of their tasks."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

SUITES = sorted((Path(__file__).parent / "suite").glob("*.yaml"))
CONTROL = "none"
"""The cell without memory."""
PEER = "sb3_contrib"
"""In place of a cell: a run of sb3-contrib's RecurrentPPO, for the tasks that have settings for it."""
PEER_SECONDS = 150
"""A run of the peer ends at the threshold, or after so much time."""
EVALUATIONS = 20
"""Evaluations a run, from which its learning curve and its time to the threshold are read."""


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        name: its key in a yaml.
        suites: the suite of that yaml, and others that the task is also in.
        overrides: the overrides of ``recurrl-train`` that choose the environment and, where returns vary much, the
            number of evaluated episodes; none of them is about learning.
        frames: the number of frames of each run.
        threshold: the return that counts as solved.
        quick: the suites whose quick selection it is in.
        at_most: the best return of any policy, or a bound on it; None if it is not known.
        random: the return of random actions, if it is known exactly.
        published: return, frames and source of a figure known for it.
        sb3_contrib: the settings of sb3-contrib's users for it; None if it is not compared with sb3-contrib.
        extra: of recurrl, which installs the environment.
    """

    name: str
    suites: tuple[str, ...]
    overrides: tuple[str, ...]
    frames: int
    threshold: float
    quick: tuple[str, ...] = ()
    at_most: float | None = None
    random: float | None = None
    published: Sequence[Any] = field(default=(), hash=False)
    sb3_contrib: Mapping[str, Any] | None = field(default=None, hash=False)
    extra: str | None = None


@dataclass(frozen=True)
class Job:
    """One run."""

    task: Task
    cell: str
    seed: int

    def folder(self, root: Path) -> Path:
        """Where it writes."""
        return root / self.task.name / self.cell / str(self.seed)

    def overrides(self, root: Path) -> list[str]:
        """The overrides of ``recurrl-train``."""
        run = [f"cell={self.cell}", f"seed={self.seed}", f"total_frames={self.task.frames}", "device=cpu"]
        every = f"evaluation.every_frames={self.task.frames // EVALUATIONS}"
        folder = f"hydra.run.dir={self.folder(root)}"
        return [*self.task.overrides, *run, every, "evaluation.random=true", "resume=auto", folder]


def all_tasks() -> list[Task]:
    """All tasks, in the order of their suites and there."""
    return [
        _task(path.stem, name, values)
        for path in SUITES
        for name, values in yaml.safe_load(path.read_text(encoding="utf-8")).items()
    ]


def _task(suite: str, name: str, values: Mapping[str, Any]) -> Task:
    suites, overrides = (suite, *values.get("also", ())), tuple(values["overrides"].split())
    others = {key: value for key, value in values.items() if key not in ("also", "overrides", "quick")}
    return Task(name=name, suites=suites, overrides=overrides, quick=tuple(values.get("quick", ())), **others)


def chosen(suites: Sequence[str], names: Sequence[str] | None, quick: bool) -> dict[str, list[Task]]:
    """The tasks by suite: all of the suites, or only those of the quick selection; or those named, of any suite.

    Raises:
        SystemExit: there is no suite or task of a name, with those there are.
    """
    tasks = {task.name: task for task in all_tasks()}
    known = [path.stem for path in SUITES]
    for option, requested, possible in (("suite", suites, [*known, "all"]), ("tasks", names or (), list(tasks))):
        for name in requested:
            if name not in possible:
                sys.exit(f"--{option} must be among {', '.join(possible)} (got {name}).")
    if names is not None:
        named = [tasks[name] for name in names]
        return {suite: [task for task in named if task.suites[0] == suite] for suite in {t.suites[0]: 0 for t in named}}
    return {
        suite: [task for task in tasks.values() if suite in (task.quick if quick else task.suites)]
        for suite in (known if "all" in suites else suites)
    }
