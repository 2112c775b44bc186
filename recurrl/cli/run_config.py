"""The configuration of a run, as its directory records it and as a run that goes on has it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from recurrl import checkpoint
from recurrl.atomic import atomic_write
from recurrl.cli.overrides import given_overrides
from recurrl.cli.saved_config import check_code, check_directory, code_named, config_within, naming, saved_config
from recurrl.config import TrainConfig
from recurrl.config.composed import typed, value_of
from recurrl.config.keys import differences
from recurrl.envs.gymnasium import EXTRAS
from recurrl.errors import ConfigError
from recurrl.run_directory import CONFIG_FILE, run_directory_of
from recurrl.tracking.csv import FILE_NAME

TRUST = "import the packages that the run's configuration names, which runs their code"

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
    changes = differences(before, plain(effective))
    for key, (was, now) in changes.items():
        if key != "resume":
            logger.info("going on with %s=%s, which was %s", key, now, was)
    checkpoint.check_changes(_typed(effective, composed, source_of(start)), changes)
    unnamed = code_named(effective, EXTRAS) - code_named(composed, EXTRAS)
    packages = ",".join(effective.env.packages)
    check_code(unnamed, source_of(start), f"name it on this command line too, packages as env.packages=[{packages}]")
    _save_config(effective, run_dir)
    _save_config(effective, run_dir / ".hydra")
    return effective, start


def _typed(effective: DictConfig, composed: DictConfig, source: Path) -> TrainConfig:
    try:
        return typed(effective)
    except ConfigError:
        # What this command line gets wrong is not the file's fault.
        typed(composed)
        with naming(source):
            return typed(effective)


def config_of(saved: checkpoint.Saved) -> DictConfig:
    """The configuration in the directory of a checkpoint's run; of a checkpoint that lies alone, the one within it."""
    if checkpoint.is_alone(saved.path):
        return config_within(saved.settings, saved.path)
    return saved_config(saved.path)


def source_of(saved: checkpoint.Saved) -> Path:
    """What :func:`config_of` reads."""
    return saved.path if checkpoint.is_alone(saved.path) else run_directory_of(saved.path) / CONFIG_FILE


def trusted(config: DictConfig, source: Path, trust_packages: bool) -> TrainConfig:
    """A saved configuration as dataclasses, for commands that take nothing of it from their command line.

    Raises:
        ConfigError: it does not fit the schema, or names code to import without ``trust_packages``.
    """
    with naming(source):
        result = typed(config)
    if not trust_packages:
        check_code(code_named(config, EXTRAS), source, "add --trust-packages")
    return result


def _save_config(config: DictConfig, folder: Path) -> None:
    # Atomically, for a run that goes on depends on it.
    with atomic_write(folder / CONFIG_FILE) as file:
        OmegaConf.save(config, file, resolve=True)


def check_unused(run_dir: Path, composed: DictConfig) -> None:
    """Refuses a directory that holds another run or files of others, before anything of them is overwritten."""
    check_directory(run_dir)
    resume = value_of(composed, "resume")
    holds_run = (run_dir / FILE_NAME).exists() or checkpoint.newest(run_dir) is not None
    if not holds_run or resume == checkpoint.AUTO:
        return
    path = None if resume is None else Path(str(resume))
    if path is None or checkpoint.is_alone(path) or not os.path.samefile(run_directory_of(path), run_dir):
        raise ConfigError(
            f"{run_dir} holds another run, which must not mix with this one. Give this run a directory of its own with "
            f"hydra.run.dir=..., or go on with that run with resume={run_dir}."
        )


def plain(config: DictConfig) -> dict[str, Any]:
    """A configuration as plain values, what refers to others resolved."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}
