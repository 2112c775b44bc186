"""Checkpoints of a run: what they hold, which are kept, and how they are found again by their frames."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torchrl.checkpoint import GlobalRNGState

from recurrl.checkpoint import files
from recurrl.config import TrainConfig
from recurrl.config.keys import differences
from recurrl.envs import recurrent_modules
from recurrl.errors import ConfigError
from recurrl.learner import Learner
from recurrl.policy import Policy
from recurrl.recurrent.auto import Choices
from recurrl.run_directory import CONFIG_FILE, run_directory_of
from recurrl.tracking import Resumed

FOLDER = "checkpoints"
AUTO = "auto"
RETURN_MEAN = "eval/return_mean"
"""The metric by which the best checkpoint is found."""
EPISODES = "carry"
"""The component of the episodes that were under way."""
NOT_OF_EPISODES = (
    *("env.reward_scale", "env.normalize_observation", "env.normalize_reward"),
    *("collector.timeout_s", "collector.on_fault"),
)
"""Settings of environments and collectors that do not change how episodes are gone on with."""
SHAPING = ("env.", "cell.", "policy.", "algorithm.")
"""The groups of settings that say which components there are, and of which shapes."""

logger = logging.getLogger(__name__)


class Stateful(Protocol):
    """What a checkpoint can hold."""

    def state_dict(self) -> Any:
        """Tensors and plain values."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Goes on from there."""


class Saved:
    """A checkpoint to go on from. That every byte is as it was written is checked once, when it is opened.

    Args:
        path: of the checkpoint.

    Attributes:
        path: likewise.
        frames: how many had been seen when it was written.
        settings: the configuration of the run that wrote it, as plain values.
        resumed: what the metrics of a run that goes on from it go on from.
        metrics: of the iteration that it was written after, without those of an evaluation.
        evaluation: the metrics that the evaluation after it added, if one was due; None if the run ended before that,
            so that the row of the iteration is yet to be logged.

    Raises:
        ConfigError: it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        values = files.metadata(path)
        frames, settings, ids = values.get("frames"), values.get("settings", {}), values.get("tracker_ids", {})
        metrics = values.get("metrics", {})
        of_their_types = isinstance(settings, dict) and _are(str, ids) and _are(float, metrics)
        if type(frames) is not int or not 0 <= frames < 10**18 or not of_their_types:
            raise ConfigError(
                f"The checkpoint {path} is not from a run: its values are of other types. Give another one."
            )
        self.frames: int = frames
        # Those written before checkpoints held settings have none; they are refused when they are loaded.
        self.settings: dict[str, Any] = settings
        self.resumed = Resumed(self.frames, ids)
        self.metrics: dict[str, float] = metrics
        self.evaluation = files.evaluation(path)

    def load(self, into: Mapping[str, Stateful], settings: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Restores what :func:`save` wrote.

        Environments that are made in another way than they were begin new episodes, and the log says so.

        Args:
            into: the :func:`components` of the run.
            settings: the run's whole configuration as plain values.

        Raises:
            ConfigError: the checkpoint does not fit the configuration.
            RunError: a worker failed.
        """
        changes = {
            key: change
            for key, change in differences(self.settings, settings).items()
            if key.startswith(("env.", "collector.")) and key not in NOT_OF_EPISODES
        }
        if changes:
            told = ", ".join(f"{key} is {now} and was {was}" for key, (was, now) in changes.items())
            logger.warning("The episodes that were under way begin anew: %s.", told)
            into = {name: component for name, component in into.items() if name != EPISODES}
        files.load(self.path, into, self._shaping(settings))

    def path_in(self, run_dir: Path, frames: int) -> Path | None:
        """Its path, if it is a run's own of so many frames."""
        is_own = self.frames == frames and self.path.resolve().parent == (run_dir / FOLDER).resolve()
        return self.path if is_own else None

    def load_policy(self, policy: Policy, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Restores the policy alone, its running statistics included.

        Args:
            policy: made as ``settings`` say.
            settings: the whole configuration as plain values.

        Raises:
            ConfigError: the checkpoint does not fit the policy.
        """
        files.load(self.path, {"policy": policy}, self._shaping(settings))

    def _shaping(self, settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """The changes of settings by which a checkpoint may not fit."""
        changes = differences(self.settings, settings) if self.settings and settings else {}
        return {key: change for key, change in changes.items() if key.startswith(SHAPING)}


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, dict) and all(type(value) is kind for value in values.values())


def components(learner: Learner, **others: Stateful) -> dict[str, Stateful]:
    """Everything that a run changes: what learns, random numbers, and the others given by name."""
    modules = recurrent_modules(learner.policy)
    return {
        "policy": learner.policy,
        "optimizer": learner.optimizer,
        "algorithm": learner.algorithm,
        "reward_scaler": learner.reward_scaler,
        "learner": learner,
        "rng": GlobalRNGState(),
        "backends": Choices([module.chooser for module in modules], torch.device(learner.config.device)),
        **others,
    }


def save(
    run_dir: Path,
    frames: int,
    metrics: Mapping[str, float],
    of: Mapping[str, Stateful],
    tracker_ids: Mapping[str, str] = MappingProxyType({}),
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Writes a checkpoint, and returns where. :func:`add_evaluation` completes it.

    Args:
        run_dir: the run's directory.
        frames: how many have been seen.
        metrics: of the last iteration, as far as they are known before its evaluation.
        of: the :func:`components` of the run.
        tracker_ids: under which destinations of metrics find the run again.
        settings: the run's whole configuration as plain values.

    Raises:
        OSError: the disk is full, or the folder cannot be written to. The checkpoints before are whole.
    """
    path = run_dir / FOLDER / f"{files.PREFIX}{frames:012d}"
    values = {"frames": frames, "metrics": dict(metrics)}
    files.write(path, of, {**values, "tracker_ids": dict(tracker_ids), "settings": dict(settings)})
    return path


def add_evaluation(path: Path, metrics: Mapping[str, float]) -> None:
    """Records with a checkpoint that its iteration is logged, and the metrics of its evaluation, if one was due.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    files.add_evaluation(path, metrics)


def prune(run_dir: Path, keep_last: int | None) -> None:
    """Removes all checkpoints older than the last ``keep_last`` whole ones (None: none) but the best evaluated one."""
    found = files.checkpoints_in(run_dir / FOLDER)
    if keep_last is None or len(found) <= keep_last:
        return
    whole = {path: files.evaluation(path) or {} for path in found if files.damage(path) is None}
    returns = {path: values[RETURN_MEAN] for path, values in whole.items() if RETURN_MEAN in values}
    best = max(returns, key=lambda path: (returns[path], path), default=None)
    last = list(whole)[-keep_last:]
    for path in found:
        if path != best and last and path < last[0]:
            files.remove(path)


def to_resume(resume: object, run_dir: Path) -> Saved | None:
    """The checkpoint a run goes on from: for ``auto`` the newest of its own directory, None if there is none there.

    Args:
        resume: as configured: None to begin, ``auto``, a run directory or a checkpoint.
        run_dir: of the run that goes on.

    Raises:
        ConfigError: the path that ``resume`` gives is no run, the run has written no checkpoint, or it is damaged.
    """
    if resume is None:
        return None
    path = newest(run_dir) if resume == AUTO else find(Path(str(resume)))
    return None if path is None else Saved(path)


def newest(run_dir: Path) -> Path | None:
    """The checkpoint of a run with the most frames; None if it has written none."""
    return next(reversed(files.checkpoints_in(run_dir / FOLDER)), None)


def find(path: Path) -> Path:
    """The checkpoint a path names: itself, or the newest of a run directory.

    Raises:
        ConfigError: the path is neither, or the run has written no checkpoint.
    """
    if files.is_checkpoint(path):
        return path
    run_dir = run_directory_of(path)
    found = newest(run_dir)
    if found is None:
        raise ConfigError(
            f"{run_dir} holds no checkpoint to go on from: its run ended before it wrote one. Choose another run, or "
            "start anew without resume."
        )
    return found


def is_alone(path: Path) -> bool:
    """Whether a path is a checkpoint that is not in the directory of its run, which also holds the configuration."""
    return files.is_checkpoint(path) and not os.path.lexists(path.parent.parent / CONFIG_FILE)


def is_complete(config: TrainConfig, start: Saved) -> bool:
    """Whether the run to resume has nothing left to do, not even its last evaluation."""
    return start.evaluation is not None and start.frames + config.frames_per_batch > config.total_frames


def check_resume(config: TrainConfig, start: Saved | None) -> None:
    """Refuses to resume a run that is complete.

    Raises:
        ConfigError: with what to do.
    """
    if start is not None and is_complete(config, start):
        raise ConfigError(
            f"resume={config.resume} has seen {start.frames} frames already, so total_frames={config.total_frames} "
            f"leaves nothing to do. Give total_frames of at least {start.frames + config.frames_per_batch}."
        )


def check_changes(config: TrainConfig, changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Refuses changes of settings in whose place a run that goes on has what its checkpoint holds.

    Args:
        config: the run that goes on.
        changes: of each setting that is not as it was, what it was and what it is.

    Raises:
        ConfigError: with what to do.
    """
    held = {"seed": "its random numbers go on where they were"}
    if config.lr_schedule == "adaptive" and "lr_schedule" not in changes:
        held["lr"] = "lr_schedule=adaptive goes on from the rate that it had come to"
    if config.algorithm.objective == "kl" and "algorithm.objective" not in changes:
        held["algorithm.kl_coeff"] = "algorithm.objective=kl goes on from the weight that it had come to"
    for key in held.keys() & changes.keys():
        raise ConfigError(
            f"{key}={changes[key][1]} would change nothing in a run that goes on, where it was {changes[key][0]}: "
            f"{held[key]}. Leave it out, or start anew without resume."
        )
