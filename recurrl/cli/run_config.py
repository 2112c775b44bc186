"""The configuration of a run, as its directory records it and as a run that goes on has it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from recurrl import checkpoint
from recurrl.atomic import atomic_write
from recurrl.cli.overrides import given_overrides
from recurrl.config.composed import typed, value_of
from recurrl.config.keys import differences
from recurrl.errors import ConfigError
from recurrl.run_directory import CONFIG_FILE, run_directory_of
from recurrl.tracking.csv import FILE_NAME

logger = logging.getLogger(__name__)


def with_resumed(composed: DictConfig, run_dir: Path) -> DictConfig:
    """The configuration of the run to go on from, with this command line's overrides; ``composed`` if there is none.

    What results is recorded in the run directory, for those who resume or evaluate this run.
    """
    resume = value_of(composed, "resume")
    source = None if resume is None else Path(str(resume))
    if resume == checkpoint.AUTO:
        source = checkpoint.newest(run_dir)
        logger.info(
            "resume=auto: %s", f"going on from {source}" if source else f"{run_dir} holds no checkpoint, starting anew"
        )
    if source is None:
        _save_config(composed, run_dir)
        return composed
    effective = saved_config(source)
    before = plain(effective)
    for override in OverridesParser.create().parse_overrides(given_overrides()):
        key = override.key_or_group
        if key == "experiment":
            raise ConfigError("experiment= cannot be given with resume=, which keeps its run's settings. Leave it out.")
        OmegaConf.update(effective, key, value_of(composed, key), merge=False, force_add=True)
    changes = differences(before, plain(effective))
    for key, (was, now) in changes.items():
        if key != "resume":
            logger.info("going on with %s=%s, which was %s", key, now, was)
    checkpoint.check_changes(typed(effective), changes)
    _save_config(effective, run_dir)
    _save_config(effective, run_dir / ".hydra")
    return effective


def saved_config(path: Path) -> DictConfig:
    """The configuration of a run directory; of a checkpoint that lies alone, the one within it."""
    if checkpoint.is_alone(path):
        return OmegaConf.create(checkpoint.settings_of(path))
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
