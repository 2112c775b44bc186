"""The checkpoints of a run: writing them, keeping some, and finding one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recurrl import __version__
from recurrl.checkpoint import files
from recurrl.checkpoint.checkpoint import Checkpoint, Stateful
from recurrl.errors import ConfigError, require
from recurrl.runtime.ranks import world
from recurrl.runtime.run_directory import CHECKPOINTS, run_directory_of

AUTO = "auto"
BEST, LAST = "best", "last"
RETURN_MEAN = "eval/return_mean"
"""The metric by which the best checkpoint is found."""


def save(
    run_dir: Path,
    frames: int,
    metrics: Mapping[str, float],
    of: Mapping[str, Stateful],
    tracker_ids: Mapping[str, str] = MappingProxyType({}),
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Writes a checkpoint and returns its path. :func:`add_evaluation` completes it.

    Args:
        run_dir: the run's directory.
        frames: frames seen so far.
        metrics: of the last iteration, without its evaluation.
        of: the :func:`components` of the run.
        tracker_ids: the run's ids at destinations of metrics.
        settings: the run's whole configuration as plain values.

    Raises:
        OSError: the disk is full, or the folder is not writable. Earlier checkpoints stay intact.
    """
    path = run_dir / CHECKPOINTS / f"{files.PREFIX}{frames:012d}"
    values = {"version": __version__, "frames": frames, "ranks": world().size, "metrics": dict(metrics)}
    files.write(path, of, {**values, "tracker_ids": dict(tracker_ids), "settings": dict(settings)})
    return path


def prune(run_dir: Path, keep_last: int | None) -> None:
    """Keeps the last ``keep_last`` intact checkpoints (None: all) and the best evaluated one; removes older ones."""
    found = files.checkpoints_in(run_dir / CHECKPOINTS)
    if keep_last is None or len(found) <= keep_last:
        return
    whole = [path for path in found if files.damage(path) is None]
    best, last = _best(whole), whole[-keep_last:]
    for path in found:
        if path != best and last and path < last[0]:
            files.remove(path)


def to_resume(resume: object, run_dir: Path) -> Checkpoint | None:
    """The checkpoint to resume from: for ``auto`` the newest in the run's own directory, or None without one.

    Args:
        resume: as configured: None to begin, ``auto``, a run directory or a checkpoint.
        run_dir: the directory of the resuming run.

    Raises:
        ConfigError: ``resume`` is not the path of a run, or the run has no checkpoint or a damaged one.
    """
    if resume is None:
        return None
    path = newest(run_dir) if resume == AUTO else find(Path(str(resume)))
    return None if path is None else Checkpoint(path)


def newest(run_dir: Path) -> Path | None:
    """The checkpoint of a run with the most frames; None if it has written none."""
    return next(reversed(files.checkpoints_in(run_dir / CHECKPOINTS)), None)


def _best(intact: Sequence[Path]) -> Path | None:
    """The checkpoint with the best evaluation; None if none was evaluated."""
    evaluations = {path: files.evaluation(path) or {} for path in intact}
    returns = {path: values[RETURN_MEAN] for path, values in evaluations.items() if RETURN_MEAN in values}
    return max(returns, key=lambda path: (returns[path], path), default=None)


def best(run_dir: Path) -> tuple[Path, dict[str, Any]]:
    """The best checkpoint of a run, and what describes it: frames, evaluation, version and its files' SHA-256.

    Raises:
        ConfigError: the run has no evaluated checkpoint.
    """
    saved = Checkpoint(_best_in(run_dir))
    described = {"frames": saved.frames, "version": saved.version, "sha256": files.checksums(saved.path)}
    return saved.path, {**(saved.evaluation or {}), **described}


def find(path: Path, which: str = LAST) -> Path:
    """The checkpoint a path names: itself, or one of a run directory.

    Args:
        path: of a checkpoint or a run directory.
        which: of a run directory: ``last``, or ``best`` by the return of the evaluation after it.

    Raises:
        ConfigError: the path is neither, or the run has written no such checkpoint.
    """
    require(which in (BEST, LAST), f"which={which} is not possible. Give {BEST} or {LAST}.")
    if files.is_checkpoint(path):
        return path
    run_dir = run_directory_of(path)
    found = newest(run_dir)
    if found is None:
        raise ConfigError(
            f"{run_dir} holds no checkpoint: its run ended before it wrote one. Choose another run, or start a new one "
            "without it."
        )
    return found if which == LAST else _best_in(run_dir)


def _best_in(run_dir: Path) -> Path:
    intact = [each for each in files.checkpoints_in(run_dir / CHECKPOINTS) if files.damage(each) is None]
    best = _best(intact)
    if best is None:
        raise ConfigError(
            f"{run_dir} holds no evaluated checkpoint: its run has not reached an evaluation. Give which={LAST} for "
            "its newest checkpoint, or resume it first."
        )
    return best
