"""The directory of a run: locked while in use, rejected if another run uses it, removed if its run is rejected."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from recurrl.config.composed import as_schema, plain, value_of
from recurrl.config.keys import flat
from recurrl.errors import ConfigError, require
from recurrl.runtime.run_directory import LOCK, LOG, check_unused, locked, run_directory_of


def _resumed_directory(resume: object) -> Path | None:
    """The directory of the run that ``resume`` names; None if it names none."""
    with suppress(ConfigError):  # a lone checkpoint; or not a run, which is reported where it is opened
        return None if resume in (None, "auto") else run_directory_of(Path(str(resume)))
    return None


# The default of hydra.run.dir: the directory of the run to resume, or else a new one.
OmegaConf.register_new_resolver(
    "run_directory", lambda resume, new: str(_resumed_directory(resume) or new), replace=True
)


@contextmanager
def run_directory(run_dir: Path, composed: DictConfig) -> Iterator[str | None]:
    """Locks the directory of a run while the block runs. A rejected run leaves nothing behind.

    Yields what the run resumes, if anything.

    Args:
        run_dir: the directory.
        composed: the run's configuration.

    Raises:
        ConfigError: another process uses the directory, or it holds another run, or files of another program that the
            run would overwrite; or ``resume=auto`` has no lasting directory to look into.
    """
    was_empty = False
    try:
        with locked(run_dir):
            was_empty = len(list(run_dir.iterdir())) == 1  # with the lock
            resume = value_of(composed, "resume")
            if resume == "auto":
                _check_lasting()
            resumed = run_dir if resume == "auto" else _resumed_directory(resume)
            try:
                check_unused(run_dir, is_resumed=resumed is not None and resumed.resolve() == run_dir.resolve())
            except ConfigError:
                if resume is None:
                    as_schema(composed)  # a wrong option is the first thing to correct
                raise
            yield resume
    except ConfigError:
        if was_empty and {path.name for path in run_dir.iterdir()} <= {LOCK, LOG}:
            shutil.rmtree(run_dir)
            # Relative to the current folder, so that this is never removed.
            with suppress(OSError, ValueError):
                os.removedirs(run_dir.parent.relative_to(Path.cwd()))
        raise


def _check_lasting() -> None:
    """Rejects a directory named after the current time: the next start would look in another one."""
    hydra: Any = HydraConfig.get()
    examples = {"run.dir": "outputs/mine"}
    if hydra.mode == RunMode.MULTIRUN:
        examples = {"sweep.dir": "outputs/sweeps/mine", "sweep.subdir": "'${hydra.job.num}'"}
    places = flat(plain(hydra, resolve=False))
    for key, example in examples.items():
        require(
            "${now:" not in places[key],
            "resume=auto needs a directory that lasts (run_dir=... in Python), because by default each run has a new "
            f"one. Add hydra.{key}={example}.",
        )
