"""The configuration of a run, as its directory records it and as a run that goes on has it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from recurrl import checkpoint
from recurrl.atomic import atomic_write
from recurrl.cli.overrides import given_overrides
from recurrl.config import TrainConfig
from recurrl.config.composed import typed, value_of
from recurrl.config.keys import differences
from recurrl.errors import ConfigError
from recurrl.run_directory import CONFIG_FILE, run_directory_of
from recurrl.schedule import annealed
from recurrl.tracking.csv import FILE_NAME

logger = logging.getLogger(__name__)


def with_resumed(composed: DictConfig, run_dir: Path) -> tuple[DictConfig, checkpoint.Saved | None]:
    """The configuration of the run to go on from, with this command line's overrides, and what there is to go on from.

    Of a run that begins it is ``composed``, and None.

    What results is recorded in the run directory, for those who resume or evaluate this run.
    """
    resume = value_of(composed, "resume")
    start = checkpoint.to_resume(resume, run_dir)
    if resume == checkpoint.AUTO:
        what = f"going on from {start.path}" if start else f"{run_dir} holds no checkpoint, starting anew"
        logger.info("resume=auto: %s", what)
    if start is None:
        _save_config(composed, run_dir)
        return composed, None
    effective = config_of(start)
    before = plain(effective)
    for override in OverridesParser.create().parse_overrides(given_overrides()):
        key = override.key_or_group
        if key == "experiment":
            raise ConfigError("experiment= cannot be given with resume=, which keeps its run's settings. Leave it out.")
        OmegaConf.update(effective, key, value_of(composed, key), merge=False, force_add=True)
    _keep_schedules(effective, before)
    changes = differences(before, plain(effective))
    for key, (was, now) in changes.items():
        if key != "resume":
            logger.info("going on with %s=%s, which was %s", key, now, was)
    if "schedule_frames" in changes:
        logger.info(_schedules_line(typed(effective)))
    checkpoint.check_changes(typed(effective), changes)
    _save_config(effective, run_dir)
    _save_config(effective, run_dir / ".hydra")
    return effective, start


def _keep_schedules(effective: DictConfig, before: Mapping[str, Any]) -> None:
    """A run that is resumed with other total_frames keeps its schedules, which would jump back up else."""
    asked = any(override.partition("=")[0] == "schedule_frames" for override in given_overrides())
    if not asked and effective.schedule_frames is None and effective.total_frames != before["total_frames"]:
        effective.schedule_frames = before["total_frames"]


def _schedules_line(config: TrainConfig) -> str:
    stays = f"stay as they are from {config.schedule_frames} frames on"
    if config.lr_schedule == "linear":
        lr = annealed(config.lr, config.lr_final_fraction, config.progress(config.total_frames))
        stays += f", with a learning rate of {lr:.3g}"
    return f"The schedules {stays}. schedule_frames={config.total_frames} stretches them over the whole run."


def config_of(saved: checkpoint.Saved) -> DictConfig:
    """The configuration in the directory of a checkpoint's run; of a checkpoint that lies alone, the one within it."""
    return OmegaConf.create(saved.settings) if checkpoint.is_alone(saved.path) else saved_config(saved.path)


def saved_config(path: Path) -> DictConfig:
    """The configuration of the run that a path lies in."""
    config = OmegaConf.load(run_directory_of(path) / CONFIG_FILE)
    assert isinstance(config, DictConfig)
    return config


def _save_config(config: DictConfig, folder: Path) -> None:
    # Atomically, for a run that goes on depends on it.
    with atomic_write(folder / CONFIG_FILE) as file:
        OmegaConf.save(config, file)


def check_unused(run_dir: Path, composed: DictConfig) -> None:
    """Refuses a directory that holds another run, before anything of that run is overwritten."""
    resume = value_of(composed, "resume")
    if not (run_dir / FILE_NAME).exists() or resume == checkpoint.AUTO:
        return
    path = None if resume is None else Path(str(resume))
    if path is None or checkpoint.is_alone(path) or run_directory_of(path).resolve() != run_dir.resolve():
        raise ConfigError(
            f"{run_dir} holds another run, which must not mix with this one. Give this run a directory of its own with "
            f"hydra.run.dir=..., or go on with that run with resume={run_dir}."
        )


def plain(config: DictConfig) -> dict[str, Any]:
    """A configuration as plain values, what refers to others resolved."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}
