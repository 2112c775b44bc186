"""Checkpoints of a run: their contents, which ones are kept, and how they are found."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from torchrl.checkpoint import GlobalRNGState

from recurrl.checkpoint import files
from recurrl.config import TrainConfig
from recurrl.config.keys import differences
from recurrl.envs import recurrent_modules
from recurrl.errors import ConfigError
from recurrl.learning.learner import Learner
from recurrl.policy import Policy
from recurrl.recurrent.auto import Choices
from recurrl.runtime.run_directory import CONFIG_FILE, run_directory_of
from recurrl.tracking import Resumed

FOLDER = "checkpoints"
AUTO = "auto"
RETURN_MEAN = "eval/return_mean"
"""The metric by which the best checkpoint is found."""
EPISODES = "collector_state"
"""The component that holds the unfinished episodes."""
NOT_OF_EPISODES = (
    *("env.reward_scale", "env.normalize_observation", "env.normalize_reward"),
    *("collector.timeout_s", "collector.on_fault"),
)
"""Settings of environments and collectors that unfinished episodes do not depend on."""
SHAPING = ("env.", "cell.", "policy.", "algorithm.")
"""The groups of settings that determine the components and their shapes."""

logger = logging.getLogger(__name__)


class Stateful(Protocol):
    """A component of a checkpoint."""

    def state_dict(self) -> Any:
        """Tensors and plain values."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Restores them."""


class Saved:
    """A checkpoint of a run. Its checksums are verified once, when it is opened.

    Args:
        path: of the checkpoint.

    Attributes:
        path: likewise.
        frames: frames seen when it was written.
        settings: the configuration of the run that wrote it, as plain values.
        resumed: the tracking state that a resumed run continues from.
        metrics: the metrics of its iteration, without those of an evaluation.
        evaluation: the metrics of the evaluation after it, if one was due; None if the run ended before it, so that the
            iteration is yet to be logged.

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
                f"The checkpoint {path} was not written by a run: its metadata has unexpected types. Give another one."
            )
        self.frames: int = frames
        # Checkpoints of older versions have no settings; loading them is an error.
        self.settings: dict[str, Any] = settings
        self.resumed = Resumed(self.frames, ids)
        self.metrics: dict[str, float] = metrics
        self.evaluation = files.evaluation(path)

    def load(self, into: Mapping[str, Stateful], settings: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Restores what :func:`save` wrote.

        Environments whose settings have changed begin new episodes, and the log says so.

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
            logger.warning("Unfinished episodes are restarted: %s.", told)
            into = {name: component for name, component in into.items() if name != EPISODES}
        files.load(self.path, into, self._shaping(settings))

    def path_in(self, run_dir: Path, frames: int) -> Path | None:
        """Its path, if it is ``run_dir``'s own checkpoint of ``frames`` frames."""
        is_own = self.frames == frames and self.path.resolve().parent == (run_dir / FOLDER).resolve()
        return self.path if is_own else None

    def load_policy(self, policy: Policy, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Restores only the policy, including its running statistics.

        Args:
            policy: made as ``settings`` say.
            settings: the whole configuration as plain values.

        Raises:
            ConfigError: the checkpoint does not fit the policy.
        """
        files.load(self.path, {"policy": policy}, self._shaping(settings))

    def _shaping(self, settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """The changed settings that may keep a checkpoint from fitting."""
        changes = differences(self.settings, settings) if self.settings and settings else {}
        return {key: change for key, change in changes.items() if key.startswith(SHAPING)}


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, dict) and all(type(value) is kind for value in values.values())


def components(learner: Learner, **others: Stateful) -> dict[str, Stateful]:
    """The whole state of a run: the learner's parts, random numbers, and ``others`` by name."""
    modules = recurrent_modules(learner.policy)
    return {
        "policy": learner.policy,
        "optimizer": learner.optimizer,
        "algorithm": learner.algorithm,
        "reward_scaler": learner.reward_scaler,
        "learner": learner,
        "rng": GlobalRNGState(),
        "backends": Choices([module.chooser for module in modules], learner.policy.device),
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
    """Writes a checkpoint and returns its path. :func:`add_evaluation` completes it.

    Args:
        run_dir: the run's directory.
        frames: frames seen so far.
        metrics: of the last iteration, without its evaluation.
        of: the :func:`components` of the run.
        tracker_ids: the run's ids at destinations of metrics.
        settings: the run's whole configuration as plain values.

    Raises:
        OSError: the disk is full, or the folder is not writable. Earlier checkpoints stay intact.
    """
    path = run_dir / FOLDER / f"{files.PREFIX}{frames:012d}"
    values = {"frames": frames, "metrics": dict(metrics)}
    files.write(path, of, {**values, "tracker_ids": dict(tracker_ids), "settings": dict(settings)})
    return path


def add_evaluation(path: Path, metrics: Mapping[str, float]) -> None:
    """Records in a checkpoint that its iteration is logged, and the metrics of its evaluation, if one was due.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    files.add_evaluation(path, metrics)


def prune(run_dir: Path, keep_last: int | None) -> None:
    """Keeps the last ``keep_last`` intact checkpoints (None: all) and the best evaluated one; removes older ones."""
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
    """The checkpoint to resume from: for ``auto`` the newest in the run's own directory, or None without one.

    Args:
        resume: as configured: None to begin, ``auto``, a run directory or a checkpoint.
        run_dir: the directory of the resuming run.

    Raises:
        ConfigError: ``resume`` is not the path of a run, or the run has no checkpoint or a damaged one.
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
            f"{run_dir} holds no checkpoint: its run ended before it wrote one. Choose another run, or start a new one "
            "without resume."
        )
    return found


def is_alone(path: Path) -> bool:
    """True for a checkpoint outside its run directory, which also holds the configuration."""
    return files.is_checkpoint(path) and not os.path.lexists(path.parent.parent / CONFIG_FILE)


def is_complete(config: TrainConfig, start: Saved) -> bool:
    """True if the run to resume has nothing left to do, not even its last evaluation."""
    return start.evaluation is not None and start.frames + config.frames_per_batch > config.total_frames


def check_resume(config: TrainConfig, start: Saved | None) -> None:
    """Rejects resuming a complete run.

    Raises:
        ConfigError: with what to do.
    """
    if start is not None and is_complete(config, start):
        raise ConfigError(
            f"resume={config.resume} is already at {start.frames} frames, so total_frames={config.total_frames} leaves "
            f"nothing to do. Give total_frames of at least {start.frames + config.frames_per_batch}."
        )


def check_changes(config: TrainConfig, changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Rejects changes of settings that a resumed run takes from its checkpoint.

    Args:
        config: the resumed run.
        changes: old and new value of each changed setting.

    Raises:
        ConfigError: with what to do.
    """
    held = {"seed": "its random number generators are restored"}
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
