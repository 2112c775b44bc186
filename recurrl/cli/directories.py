"""The directory of a run: locked while in use, without files of others, and removed if the run is rejected."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omegaconf import OmegaConf

from recurrl.cli.saved_config import MOST_BYTES, saved_config
from recurrl.config.composed import paths_of, plain
from recurrl.config.keys import check_key, packaged_keys
from recurrl.config.plugins import PACKAGES, is_custom, key_of
from recurrl.errors import ConfigError, naming
from recurrl.runtime.run_directory import (
    CHECKPOINTS,
    CONFIG_FILE,
    CURVE,
    METRICS,
    SUMMARY,
    check_writable_places,
    looks_like_checkpoint,
    read_text,
    run_directory_of,
)
from recurrl.runtime.run_lock import locked


@contextmanager
def run_directory(run_dir: Path) -> Iterator[None]:
    """Locks the directory of a run while the block runs. Of a run that is rejected nothing is left.

    Raises:
        ConfigError: another process uses the directory.
    """
    was_empty = False
    try:
        with locked(run_dir):
            was_empty = len(list(run_dir.iterdir())) == 1  # with the lock
            yield
    except ConfigError:
        if was_empty and not (run_dir / SUMMARY).exists():
            shutil.rmtree(run_dir)
            # A relative path: the current folder is never removed.
            with suppress(OSError, ValueError):
                os.removedirs(run_dir.parent.relative_to(Path.cwd()))
        raise


def check_unused(run_dir: Path, resume: object) -> None:
    """Rejects a directory that holds another run, or files of another program that the run would overwrite.

    Args:
        run_dir: the directory.
        resume: what the run resumes, if anything.

    Raises:
        ConfigError: with the file or the run.
    """
    check_writable_places(run_dir)
    if os.path.lexists(run_dir / CONFIG_FILE):
        _check_keys(run_dir)
    ours = {run_dir / SUMMARY: _is_summary(run_dir / SUMMARY), run_dir / CURVE: (run_dir / METRICS).is_file()}
    for path, is_ours in ours.items():
        if os.path.lexists(path) and not is_ours:
            raise ConfigError(
                f"{path} was not written by a run, and this run would overwrite it. Move it away, or give the run "
                "another directory with hydra.run.dir=..."
            )
    holds_run = (run_dir / METRICS).exists() or any(map(looks_like_checkpoint, (run_dir / CHECKPOINTS).glob("*")))
    if holds_run and resume != "auto" and not _is_within(resume, run_dir):
        raise ConfigError(
            f"{run_dir} already holds another run. Give this run another directory with hydra.run.dir=..., or continue "
            f"that run with resume={run_dir}."
        )


def _is_within(resume: object, run_dir: Path) -> bool:
    """True if ``resume`` is this directory or one of its checkpoints."""
    try:
        return resume is not None and os.path.samefile(run_directory_of(Path(str(resume))), run_dir)
    except (ConfigError, OSError):  # reported where it is opened
        return False


def _check_keys(run_dir: Path) -> None:
    """Rejects unknown keys, except in a group with a custom choice, whose keys only its code knows."""
    with naming(run_dir / CONFIG_FILE):
        config, known = saved_config(run_dir), packaged_keys()
        custom = tuple(f"{group}." for group in PACKAGES if is_custom(str(OmegaConf.select(config, key_of(group)))))
        for path in paths_of(plain(config), known):
            if not path.startswith(custom):
                check_key(path, known)


def _is_summary(path: Path) -> bool:
    try:
        found = json.loads(read_text(path, MOST_BYTES))
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"status", "frames", "error"} <= found.keys()
