"""The directory of a run: locked while in use, without files of others, and removed if the run is rejected."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omegaconf import DictConfig

from recurrl.config.composed import value_of
from recurrl.errors import ConfigError, require
from recurrl.runtime.run_directory import (
    CHECKPOINTS,
    CONFIG_FILE,
    CURVE,
    METRICS,
    SUMMARY,
    check_writable_places,
    locked,
    looks_like_checkpoint,
    run_directory_of,
)


@contextmanager
def run_directory(run_dir: Path, composed: DictConfig) -> Iterator[str | None]:
    """Locks the directory of a run while the block runs. Of a run that is rejected nothing is left.

    Yields what the run resumes, if anything.

    Args:
        run_dir: the directory.
        composed: the run's configuration.

    Raises:
        ConfigError: another process uses the directory, or it holds another run, or files of another program that the
            run would overwrite.
    """
    was_empty = False
    try:
        with locked(run_dir):
            was_empty = len(list(run_dir.iterdir())) == 1  # with the lock
            resume = value_of(composed, "resume")
            _check_unused(run_dir, resume)
            yield resume
    except ConfigError:
        if was_empty and not (run_dir / SUMMARY).exists():
            shutil.rmtree(run_dir)
            # A relative path: the current folder is never removed.
            with suppress(OSError, ValueError):
                os.removedirs(run_dir.parent.relative_to(Path.cwd()))
        raise


def _check_unused(run_dir: Path, resume: object) -> None:
    check_writable_places(run_dir)
    checkpoints = any(map(looks_like_checkpoint, (run_dir / CHECKPOINTS).glob("*")))
    is_run = checkpoints or (run_dir / METRICS).exists()
    for path in (run_dir / CONFIG_FILE, run_dir / SUMMARY, run_dir / CURVE):
        # A run that ended before its first iteration has left .hydra.
        require(
            is_run or (run_dir / ".hydra").is_dir() or not os.path.lexists(path),
            f"{path} was not written by a run, and this run would overwrite it. Move it away, or give the run another "
            "directory with hydra.run.dir=...",
        )
    require(
        not is_run or resume == "auto" or _is_within(resume, run_dir),
        f"{run_dir} already holds another run. Give this run another directory with hydra.run.dir=..., or continue "
        f"that run with resume={run_dir}.",
    )


def _is_within(resume: object, run_dir: Path) -> bool:
    """True if ``resume`` is this directory or one of its checkpoints."""
    try:
        return resume is not None and os.path.samefile(run_directory_of(Path(str(resume))), run_dir)
    except (ConfigError, OSError):  # reported where it is opened
        return False
