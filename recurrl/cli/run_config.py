"""The configuration of a run that exists: merged with a command line to resume it, or trusted by another command."""

import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recurrl import checkpoint
from recurrl.cli.overrides import overridden_keys, parsed, text_of
from recurrl.cli.saved_config import check_code, code_named, config_within, saved_config
from recurrl.config import TrainConfig
from recurrl.config.composed import as_schema, plain, typed, value_of
from recurrl.config.keys import differences
from recurrl.config.plugins import PRESETS
from recurrl.errors import ConfigError, naming
from recurrl.runtime.run_directory import CONFIG_FILE, run_directory_of
from recurrl.validation import check_values

logger = logging.getLogger(__name__)


def with_resumed(
    composed: DictConfig, overrides: Sequence[str], run_dir: Path
) -> tuple[DictConfig, TrainConfig, checkpoint.Checkpoint | None]:
    """The configuration of the run to resume with this command line's overrides, the same with types, the checkpoint.

    With ``resume=auto`` where there is no checkpoint it is ``composed``, and the checkpoint None.

    Raises:
        ConfigError: there is no such run, its configuration does not fit, or an override has no effect in it.
    """
    resume = value_of(composed, "resume")
    with naming(f"resume={resume}"):
        start = checkpoint.to_resume(resume, run_dir)
    if resume == checkpoint.AUTO:
        found = f"resuming from {start.path}" if start else f"{run_dir} holds no checkpoint, starting a new run"
        logger.info("resume=auto: %s", found)
    if start is None:
        return composed, as_schema(composed), None
    effective, source = config_of(start), source_of(start)
    before = plain(effective)
    for override in parsed(overrides):
        key = override.key_or_group
        if key in PRESETS:
            raise ConfigError(f"{key}= cannot be combined with resume=, which keeps its run's settings. Leave it out.")
        OmegaConf.update(effective, key, value_of(composed, key), merge=False, force_add=True)
    if before.get("schedule_frames") is None and "schedule_frames" not in overridden_keys(overrides):
        # With other total_frames the schedules would otherwise jump back up.
        effective.schedule_frames = before.get("total_frames") if _extends(effective, before) else None
    _check_code(effective, composed, source)
    changes = differences(before, plain(effective))
    for key, (was, now) in changes.items():
        if key != "resume":
            logger.info("resuming with %s=%s, which was %s", key, now, was)
    config = _checked(effective, composed, source)
    if "schedule_frames" in changes:
        logger.info(
            "The schedules end at %d frames, as before. schedule_frames=%d stretches them over the whole run.",
            *(config.schedule_frames, config.total_frames),
        )
    _check_changes(config, changes)
    return effective, config, start


def _extends(effective: DictConfig, before: Mapping[str, Any]) -> bool:
    return OmegaConf.select(effective, "total_frames") != before.get("total_frames")


def _check_code(effective: DictConfig, composed: DictConfig, source: Path) -> None:
    """Refuses to import code that this command line does not name too."""
    allowed = set().union(*code_named(composed, "command line").values())
    unnamed = {key: left for key, texts in code_named(effective, source).items() if (left := texts - allowed)}
    again = shlex.join(f"{key}={_unquoted(value_of(effective, key))}" for key in unnamed)
    check_code(unnamed, source, f"name it on this command line too: {again}")


def _unquoted(value: Any) -> str:
    return value if isinstance(value, str) else text_of(value)


def _checked(effective: DictConfig, composed: DictConfig, source: Path) -> TrainConfig:
    """The configuration with its types, and values in their ranges."""
    try:
        config = as_schema(effective)
        check_values(config)
    except ConfigError:
        # What this command line gets wrong must not be reported as the file's error.
        check_values(as_schema(composed))
        with naming(source):
            raise
    return config


def _check_changes(config: TrainConfig, changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Rejects changes of settings that a resumed run takes from its checkpoint."""
    kept = {"seed": "its random number generators are restored", "init_from": "its weights are restored"}
    kept |= {f"pretrain.{name}": "its weights are restored" for name in ("folder", "epochs")}
    if config.lr_schedule == "adaptive" and "lr_schedule" not in changes:
        kept["lr"] = "lr_schedule=adaptive resumes from its last learning rate"
    for key in kept.keys() & changes.keys():
        raise ConfigError(
            f"{key}={changes[key][1]} has no effect in a resumed run, where it was {changes[key][0]}: {kept[key]}. "
            "Leave it out, or start a new run without resume."
        )


def config_of(saved: checkpoint.Checkpoint) -> DictConfig:
    """The configuration in the directory of a checkpoint's run; of a checkpoint elsewhere, the one within it."""
    return config_within(saved.settings, saved.path) if saved.is_alone else saved_config(saved.path)


def source_of(saved: checkpoint.Checkpoint) -> Path:
    """The file or checkpoint that :func:`config_of` reads."""
    return saved.path if saved.is_alone else run_directory_of(saved.path) / CONFIG_FILE


def trusted(config: DictConfig, source: Path, trust_packages: bool) -> TrainConfig:
    """A saved configuration as dataclasses, for commands whose command line changes nothing of it.

    Raises:
        ConfigError: it does not fit the schema, or names code to import without ``trust_packages``.
    """
    if not trust_packages:
        check_trusted(config, source)
    with naming(source):
        return typed(config)


def check_trusted(config: DictConfig, source: Path) -> None:
    """Rejects a saved configuration that names code to import.

    Raises:
        ConfigError: with the code.
    """
    check_code(code_named(config, source), source, "add --trust-packages (trust_packages=True in Python)")
