"""Resumes a run: its configuration with the changes of a command line, and its checkpoint."""

import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recurrl import checkpoint
from recurrl.config import TrainConfig
from recurrl.config.composed import as_schema, plain, value_of
from recurrl.config.keys import differences
from recurrl.config.plugins import GROUPS, PRESETS
from recurrl.errors import ConfigError, naming, require
from recurrl.runs.open_run import config_of
from recurrl.runs.overrides import job_overrides, keys_set, overridden_keys, parsed, text_of
from recurrl.runs.saved_config import check_code, code_named

logger = logging.getLogger(__name__)


def with_resumed(composed: DictConfig, run_dir: Path) -> tuple[TrainConfig, checkpoint.Checkpoint | None]:
    """The configuration of the run to resume with the job's overrides, and the checkpoint.

    Without a checkpoint to resume, these are the composed configuration and None.

    Raises:
        ConfigError: there is no such run, its configuration does not fit, or an override has no effect in it.
    """
    resume, overrides = value_of(composed, "resume"), job_overrides()
    with naming(f"resume={resume}"):
        start = None if resume is None else checkpoint.find_to_resume(resume, run_dir)
    if resume is not None:
        outcome = f"resuming from {start.path}" if start else f"{run_dir} holds no checkpoint, starting a new run"
        logger.info("resume=%s: %s", resume, outcome)
    if start is None:
        return as_schema(composed), None
    effective, source, is_own = config_of(start)
    before = plain(effective)
    keys = list(chain.from_iterable(map(keys_set, parsed(overrides))))
    for key in (key for key in keys if key not in PRESETS):
        OmegaConf.update(effective, key, value_of(composed, key), merge=False, force_add=True)
    for key in (key for key in keys if key in PRESETS):
        # A scheduler repeats the command that began the run, whose preset changes nothing now.
        others = differences(plain(effective), asdict(as_schema(composed))).items()
        changed = [name for name, (_, now) in others if now is not None and name != "resume"]
        require(
            resume == checkpoint.AUTO and not changed,
            f"{key}= cannot be combined with resume=, which keeps its run's settings. Leave it out, or start a new "
            f"run with its weights: init_from={start.path} instead of resume.",
        )
    keeps_schedule = "schedule_frames" not in overridden_keys(overrides)
    if keeps_schedule and before.get("schedule_frames") is None:
        # If total_frames grows, the schedules would otherwise jump back up.
        total = before.get("total_frames")
        effective.schedule_frames = None if OmegaConf.select(effective, "total_frames") == total else total
    if not is_own:
        _check_code(effective, composed, source)
    changes = differences(before, plain(effective))
    for key, (was, now) in changes.items():
        if key != "resume":
            logger.info("resuming with %s=%s, which was %s", key, now, was)
    config = _typed(effective, changes, overrides, source)
    if "schedule_frames" in changes or not keeps_schedule:
        stretched = f", as before. schedule_frames={config.total_frames} stretches them over the whole run"
        end = config.schedule_frames or config.total_frames
        logger.info("The schedules end at %d frames%s.", end, stretched if keeps_schedule else "")
    _check_changes(config, changes, start.path)
    return config, start


def _check_code(effective: DictConfig, composed: DictConfig, source: Path) -> None:
    """Raises ConfigError if the saved configuration names code to import that this command line does not name too."""
    allowed = set().union(*code_named(composed, "command line").values())
    unnamed = {key: left for key, texts in code_named(effective, source).items() if (left := texts - allowed)}
    check_code(unnamed, source, f"name it on this command line too: {shlex.join(as_overrides(effective, unnamed))}")


def as_overrides(config: DictConfig, keys: Iterable[str]) -> list[str]:
    """The overrides that set some keys to their values in a configuration."""
    return [f"{key}={text_of(value_of(config, key))}" for key in keys]


def _typed(effective: DictConfig, changes: Mapping[str, Any], overrides: Sequence[str], source: Path) -> TrainConfig:
    try:
        return as_schema(effective)
    except ConfigError as error:
        typed = changes.keys() & {each.key_or_group for each in parsed(overrides)}
        for group in (group for group in GROUPS if f"{group}.name" in typed):
            was, now = changes[f"{group}.name"]
            raise ConfigError(
                f"{group}.name={now} does not accept the options that this run has for {was}. "
                f"Choose {group}={now}, which starts from the defaults of {now}."
            ) from error
        # What this command line gets wrong must not be reported as the file's error.
        if any(key in str(error) for key in changes.keys() - {"resume"}):
            raise
        with naming(source):
            raise


def _check_changes(config: TrainConfig, changes: Mapping[str, tuple[Any, Any]], start: Path) -> None:
    """Rejects changes of settings that a resumed run takes from its checkpoint."""
    restored = {"seed": "its random number generators are restored", "optimizer": "its optimizer is restored"}
    weights = ("init_from", "pretrain.folder", "pretrain.epochs", "policy.initial_std")
    restored |= dict.fromkeys(weights, "its weights are restored")
    if config.lr_schedule == "adaptive":
        restored["lr"] = "lr_schedule=adaptive resumes from the last learning rate"
    advice = f"Leave it out, or start a new run with these weights: init_from={start} instead of resume."
    for key in (key for key in restored if key in changes):
        was, now = map(text_of, changes[key])
        raise ConfigError(f"{key}={now} has no effect in a resumed run, where it was {was}: {restored[key]}. {advice}")
    was, now = changes.get("policy.noise_correlation", (0, 0))
    require(  # episodes under way and replayed rows have an entry for the noise, or have none
        bool(was) == bool(now),
        f"policy.noise_correlation must stay {'above 0' if was else '0'} in a resumed run (got {now}). " + advice,
    )
