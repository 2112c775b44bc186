"""The configuration of a run: recorded in its directory, and merged with overrides when it resumes."""

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf

from recurrl import checkpoint
from recurrl.cli.overrides import given_overrides
from recurrl.cli.saved_config import check_code, code_named, config_within, saved_config
from recurrl.config import TrainConfig
from recurrl.config.composed import plain, typed, value_of
from recurrl.config.keys import differences
from recurrl.config.options import check_values
from recurrl.config.plugins import PRESETS
from recurrl.errors import ConfigError, naming
from recurrl.losses.schedule import annealed
from recurrl.runtime.atomic import atomic_write
from recurrl.runtime.run_directory import CONFIG_FILE, run_directory_of

logger = logging.getLogger(__name__)


def with_resumed(composed: DictConfig, run_dir: Path) -> tuple[DictConfig, checkpoint.Checkpoint | None]:
    """The configuration of the run to resume, with this command line's overrides, and its checkpoint.

    Of a run that begins it is ``composed``, and None.
    """
    resume = value_of(composed, "resume")
    with naming(f"resume={resume}"):
        start = checkpoint.to_resume(resume, run_dir)
    if resume == checkpoint.AUTO:
        what = f"resuming from {start.path}" if start else f"{run_dir} holds no checkpoint, starting a new run"
        logger.info("resume=auto: %s", what)
    if start is None:
        return composed, None
    effective = config_of(start)
    before = plain(effective)
    for override in OverridesParser.create().parse_overrides(given_overrides()):
        key = override.key_or_group
        if key in PRESETS:
            raise ConfigError(f"{key}= cannot be combined with resume=, which keeps its run's settings. Leave it out.")
        OmegaConf.update(effective, key, value_of(composed, key), merge=False, force_add=True)
    _keep_schedules(effective, before)
    allowed = set().union(*code_named(composed).values())
    with naming(source_of(start)):
        named = code_named(effective)
    unnamed = {key: left for key, texts in named.items() if (left := texts - allowed)}
    again = shlex.join(_as_override(effective, key) for key in unnamed)
    check_code(unnamed, source_of(start), f"name it on this command line too: {again}")
    changes = differences(before, plain(effective))
    for key, (was, now) in changes.items():
        if key != "resume":
            logger.info("resuming with %s=%s, which was %s", key, now, was)
    config = _typed(effective, composed, source_of(start))
    if "schedule_frames" in changes:
        logger.info(_schedules_line(config))
    _check_changes(config, changes)
    return effective, start


def _check_changes(config: TrainConfig, changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Rejects changes of settings that a resumed run takes from its checkpoint."""
    held = {"seed": "its random number generators are restored", "init_from": "its weights are restored"}
    held |= {f"pretrain.{name}": "its weights are restored" for name in ("folder", "epochs", "lr")}
    if config.lr_schedule == "adaptive" and "lr_schedule" not in changes:
        held["lr"] = "lr_schedule=adaptive resumes from its last learning rate"
    for name, enabling in config.algorithm.adaptive.items():
        if f"algorithm.{enabling}" not in changes:
            chosen = getattr(config.algorithm, enabling)
            held[f"algorithm.{name}"] = f"algorithm.{enabling}={chosen} resumes from its last value"
    for key in held.keys() & changes.keys():
        raise ConfigError(
            f"{key}={changes[key][1]} has no effect in a resumed run, where it was {changes[key][0]}: {held[key]}. "
            "Leave it out, or start a new run without resume."
        )


def _as_override(config: DictConfig, key: str) -> str:
    value = value_of(config, key)
    if isinstance(value, ListConfig | DictConfig):
        value = OmegaConf.to_container(value)
    text = value if isinstance(value, str) else Override._get_value_element_as_str(value)
    return f"{key}={text}".replace("\\:", ":")


def _typed(effective: DictConfig, composed: DictConfig, source: Path) -> TrainConfig:
    try:
        return _checked(effective)
    except ConfigError:
        # What this command line gets wrong is not the file's fault.
        _checked(composed)
        with naming(source):
            return _checked(effective)


def _checked(config: DictConfig) -> TrainConfig:
    found = typed(config)
    check_values(found)
    return found


def _keep_schedules(effective: DictConfig, before: Mapping[str, Any]) -> None:
    """A run that is resumed with other total_frames keeps its schedules, which would otherwise jump back up."""
    asked = any(override.partition("=")[0] == "schedule_frames" for override in given_overrides())
    had = before.get("total_frames")
    if not asked and before.get("schedule_frames") is None and OmegaConf.select(effective, "total_frames") != had:
        effective.schedule_frames = had


def _schedules_line(config: TrainConfig) -> str:
    stays = f"stay as they are from {config.schedule_frames} frames on"
    if config.lr_schedule == "linear":
        lr = annealed(config.lr, config.lr_final_fraction, config.progress(config.total_frames))
        stays += f", with a learning rate of {lr:.3g}"
    return f"The schedules {stays}. schedule_frames={config.total_frames} stretches them over the whole run."


def config_of(saved: checkpoint.Checkpoint) -> DictConfig:
    """The configuration in the directory of a checkpoint's run; of a checkpoint elsewhere, the one within it."""
    return config_within(saved.settings, saved.path) if saved.is_alone else saved_config(saved.path)


def source_of(saved: checkpoint.Checkpoint) -> Path:
    """The file or checkpoint that :func:`config_of` reads."""
    return saved.path if saved.is_alone else run_directory_of(saved.path) / CONFIG_FILE


def trusted(config: DictConfig, source: Path, trust_packages: bool) -> TrainConfig:
    """A saved configuration as dataclasses, for commands that take nothing of it from their command line.

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
    with naming(source):
        named = code_named(config)
    check_code(named, source, "add --trust-packages (trust_packages=True in Python)")


def record(effective: DictConfig, run_dir: Path) -> None:
    """Writes the configuration of an accepted run, for those who resume or evaluate it, and Hydra's own files."""
    folder = run_dir / ".hydra"
    folder.mkdir(exist_ok=True)
    # Resolved, because a saved configuration that refers to something else is refused.
    settings = OmegaConf.create(plain(effective))
    _save(settings, run_dir / CONFIG_FILE)
    _save(settings, folder / "config.yaml")
    _save(OmegaConf.create({"hydra": HydraConfig.get()}), folder / "hydra.yaml")
    _save(OmegaConf.create(given_overrides()), folder / "overrides.yaml")


def _save(config: DictConfig | ListConfig, path: Path) -> None:
    # Atomically, because a resumed run depends on it.
    with atomic_write(path) as file:
        OmegaConf.save(config, file)
