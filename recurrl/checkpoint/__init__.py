"""Checkpoints of a run: what they hold, which are kept, and how they are found again by their frames."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from torchrl.checkpoint import GlobalRNGState

from recurrl.checkpoint import files
from recurrl.config import TrainConfig
from recurrl.config.keys import differences
from recurrl.errors import ConfigError
from recurrl.learner import Learner
from recurrl.policy import Policy
from recurrl.run_directory import CONFIG_FILE, run_directory_of
from recurrl.tracking import Resumed

FOLDER = "checkpoints"
AUTO = "auto"
EPISODES = "carry"
"""The component of the episodes that were under way."""
NOT_OF_EPISODES = (
    *("env.reward_scale", "env.normalize_observation", "env.normalize_reward"),
    *("collector.timeout_s", "collector.on_fault"),
)
"""Settings of environments and collectors that do not change how episodes are gone on with."""

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

    Raises:
        ConfigError: it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        values = files.metadata(path)
        self.frames = int(values["frames"])
        # Those written before checkpoints held settings have none; they are refused when they are loaded.
        self.settings: dict[str, Any] = values.get("settings", {})
        self.resumed = Resumed(self.frames, values.get("tracker_ids", {}))

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
        files.load(self.path, into)

    def load_policy(self, policy: Policy) -> None:
        """Restores the policy alone, its running statistics included.

        Raises:
            ConfigError: the checkpoint does not fit the policy.
        """
        files.load(self.path, {"policy": policy})


def components(learner: Learner, **others: Stateful) -> dict[str, Stateful]:
    """Everything that a run changes: what learns, random numbers, and the others given by name."""
    return {
        "policy": learner.policy,
        "optimizer": learner.optimizer,
        "algorithm": learner.algorithm,
        "reward_scaler": learner.reward_scaler,
        "learner": learner,
        "rng": GlobalRNGState(),
        **others,
    }


def save(
    run_dir: Path,
    frames: int,
    return_mean: float | None,
    of: Mapping[str, Stateful],
    tracker_ids: Mapping[str, str] = MappingProxyType({}),
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Writes a checkpoint, and returns where.

    Args:
        run_dir: the run's directory.
        frames: how many have been seen.
        return_mean: of the evaluation after these frames; None if there was none.
        of: the :func:`components` of the run.
        tracker_ids: under which destinations of metrics find the run again.
        settings: the run's whole configuration as plain values.

    Raises:
        OSError: the disk is full, or the folder cannot be written to. The checkpoints before are whole.
    """
    path = run_dir / FOLDER / f"{files.PREFIX}{frames:012d}"
    values = {"frames": frames, "return_mean": return_mean}
    files.write(path, of, {**values, "tracker_ids": dict(tracker_ids), "settings": dict(settings)})
    return path


def prune(run_dir: Path, keep_last: int | None) -> None:
    """Removes all checkpoints but the last ``keep_last`` (None: all) and the one with the best evaluation."""
    found = files.checkpoints_in(run_dir / FOLDER)
    if keep_last is None or len(found) <= keep_last:
        return
    whole = {path: values for path in found if (values := files.metadata_if_whole(path)) is not None}
    returns = {path: values["return_mean"] for path, values in whole.items() if values["return_mean"] is not None}
    best = max(returns, key=lambda path: (returns[path], path), default=None)
    for path in found[:-keep_last]:
        if path != best:
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
    return files.is_checkpoint(path) and not (path.parent.parent / CONFIG_FILE).is_file()


def check_resume(config: TrainConfig, start: Saved | None) -> None:
    """Refuses to go on with a run that has nothing left to do.

    Raises:
        ConfigError: with what to do.
    """
    if start is not None and start.frames + config.frames_per_batch > config.total_frames:
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
