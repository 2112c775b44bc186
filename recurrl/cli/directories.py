"""The run directory of a command: made before Hydra does, locked while in use, and removed if the run is refused."""

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from recurrl.cli.saved_config import check_directory
from recurrl.config.composed import value_of
from recurrl.errors import ConfigError
from recurrl.runtime.run_directory import CHECKPOINTS, METRICS, SUMMARY, looks_like_checkpoint, run_directory_of
from recurrl.runtime.run_lock import locked

_made: list[Path] = []
"""The folders that this command created for its run, outermost first."""


class BeforeRun(Callback):
    """Makes the directory of a single run; Hydra's name is shared by runs that start in the same second."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Called with Hydra's own settings, before it makes the directory."""
        # A folder that cannot be made is for Hydra to report: what a callback raises it turns into a warning.
        with suppress(OSError):
            self._make_directory(config)

    def _make_directory(self, config: DictConfig) -> None:
        _made.clear()
        given: Any = OmegaConf.to_container(config.hydra.run, resolve=False)
        run_dir = Path(config.hydra.run.dir)
        if "${now:" not in given["dir"]:
            _make(run_dir)
            return
        for number in itertools.count(1):
            numbered = run_dir if number == 1 else run_dir.with_name(f"{run_dir.name}-{number}")
            if _make(numbered):
                with read_write(config), open_dict(config):
                    config.hydra.run.dir = str(numbered)
                return


def _make(folder: Path) -> bool:
    """Makes a folder and its parents; False if it existed already."""
    if folder.is_dir():
        return False
    _make(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:  # another run was faster
        return False
    _made.append(folder)
    return True


@contextmanager
def run_directory(run_dir: Path, composed: DictConfig) -> Iterator[None]:
    """Locks the directory of a run while the block runs; one that this command made is removed if the run is refused.

    Args:
        run_dir: the directory.
        composed: the configuration of the run, which says what it resumes.

    Raises:
        ConfigError: another process uses the directory, it holds another run, or foreign files that the run would
            overwrite.
    """
    with locked(run_dir):
        try:
            _check_unused(run_dir, value_of(composed, "resume"))
            yield
        except ConfigError:
            if _made and _made[-1].absolute() == run_dir and not _holds_results(run_dir):
                _remove()
            raise


def _holds_results(run_dir: Path) -> bool:
    metrics = run_dir / METRICS
    return any((run_dir / name).exists() for name in (SUMMARY, CHECKPOINTS)) or (
        metrics.exists() and metrics.stat().st_size > 0
    )


def _remove() -> None:
    shutil.rmtree(_made.pop())
    with suppress(OSError):  # another run may be in a folder above by now
        for folder in reversed(_made):
            folder.rmdir()


def _check_unused(run_dir: Path, resume: object) -> None:
    check_directory(run_dir)
    holds_run = (run_dir / METRICS).exists() or any(map(looks_like_checkpoint, (run_dir / CHECKPOINTS).glob("*")))
    if holds_run and resume != "auto" and not _is_within(resume, run_dir):
        raise ConfigError(
            f"{run_dir} already holds another run. Give this run a directory of its own with hydra.run.dir=..., or "
            f"continue that run with resume={run_dir}."
        )


def _is_within(resume: object, run_dir: Path) -> bool:
    """True if ``resume`` is this directory or one of its checkpoints."""
    try:
        return resume is not None and os.path.samefile(run_directory_of(Path(str(resume))), run_dir)
    except (ConfigError, OSError):  # reported where it is opened
        return False
