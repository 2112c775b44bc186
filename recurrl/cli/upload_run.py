"""Adding a run's files to its wandb run."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from recurrl import checkpoint
from recurrl.cli.run_config import config_of, source_of, trusted
from recurrl.config import WandbConfig
from recurrl.config.composed import plain
from recurrl.errors import ConfigError, require
from recurrl.runtime.report import read_summary
from recurrl.runtime.resources import resource_errors_as_messages
from recurrl.runtime.run_directory import EXPORTS, VIDEOS, run_directory_of
from recurrl.runtime.run_lock import locked
from recurrl.tracking.wandb import upload
from recurrl.tracking.wandb_artifacts import CHECKPOINT

_MADE_BY = {EXPORTS: "recurrl-export {}", VIDEOS: "recurrl-evaluate {} --video"}


@resource_errors_as_messages()
def upload_run(run: Path, kinds: Collection[str] = (), trust_packages: bool = False) -> tuple[list[str], str]:
    """Makes files of a run artifacts of its wandb run, and returns their kinds and where they are.

    Args:
        run: a run directory.
        kinds: ``checkpoint`` (the best one), ``export`` and ``video``; empty for all that there are.
        trust_packages: import the packages that the run's configuration names.

    Raises:
        ConfigError: the run was not logged to wandb, is running, or lacks what was asked for.
        RunError: something could not be recorded or uploaded.
    """
    run_dir = run_directory_of(run)
    saved = checkpoint.Checkpoint(checkpoint.find(run_dir))
    settings = config_of(saved)
    options, run_id = trusted(settings, source_of(saved), trust_packages).logger, saved.resumed.ids.get("wandb")
    if not isinstance(options, WandbConfig) or run_id is None:
        raise ConfigError(f"{run_dir} has no wandb run: it was trained with logger={options.name}. Give another run.")
    with locked(run_dir):
        artifacts = _artifacts(run_dir, kinds)
        # That with which the training run ended, which wandb shows as the state of its run.
        exit_code = 0 if read_summary(run_dir).get("status") in ("completed", "stopped") else 1
        where = upload(options, run_id, run_dir, plain(settings), artifacts, exit_code)
    return list(artifacts), where


def _artifacts(run_dir: Path, kinds: Collection[str]) -> dict[str, tuple[Path, Mapping[str, Any]]]:
    """The folder and the metadata of each kind."""
    for kind in kinds:
        known = kind == CHECKPOINT or kind in _MADE_BY
        require(known, f"{kind} is not a kind of artifact. Choose from: {', '.join((CHECKPOINT, *_MADE_BY))}.")
        exists = kind == CHECKPOINT or (run_dir / kind).is_dir()
        require(exists, f"{run_dir} has no folder {kind}. Make it with: {_MADE_BY.get(kind, '').format(run_dir)}")
    wanted = kinds or (CHECKPOINT, *(kind for kind in _MADE_BY if (run_dir / kind).is_dir()))
    return {kind: checkpoint.best(run_dir) if kind == CHECKPOINT else (run_dir / kind, {}) for kind in wanted}
