"""Checkpoints of a run: written whole or not at all, found again by their frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchrl.checkpoint import Checkpoint, CheckpointError, GlobalRNGState

from recurrl.config import TrainConfig, run_directory_of
from recurrl.episodes import EpisodeStatistics
from recurrl.errors import ConfigError
from recurrl.learner import Learner
from recurrl.policy import ActorCritic

FOLDER = "checkpoints"


def save(run_dir: Path, frames: int, learner: Learner, episodes: EpisodeStatistics) -> Path:
    """Writes everything that learning has changed, and returns where. Replaces nothing until it is whole."""
    path = run_dir / FOLDER / f"frames_{frames:012d}"
    return _components(learner, episodes).save(path, metadata={"frames": frames})


def find(path: Path) -> Path:
    """The checkpoint a path names: itself, or the newest of a run directory.

    Raises:
        ConfigError: the path is neither, or the run has written no checkpoint.
    """
    if Checkpoint.is_checkpoint(path):
        return path
    run_dir = run_directory_of(path)
    found = sorted(child for child in (run_dir / FOLDER).glob("frames_*") if Checkpoint.is_checkpoint(child))
    if not found:
        raise ConfigError(
            f"{run_dir} holds no checkpoint to go on from: its run ended before it wrote one. Choose another run, or "
            "start anew without resume."
        )
    return found[-1]


def frames_of(path: Path) -> int:
    """How many frames had been seen when the checkpoint was written."""
    return int(Checkpoint.manifest(path)["metadata"]["frames"])


def check_resume(config: TrainConfig) -> None:
    """Refuses a resume path that is no run, or a run that has nothing left to do.

    Raises:
        ConfigError: with what to do.
    """
    if config.resume is None:
        return
    frames = frames_of(find(Path(config.resume)))
    if frames + config.frames_per_batch > config.total_frames:
        raise ConfigError(
            f"resume={config.resume} has seen {frames} frames already, so total_frames={config.total_frames} leaves "
            f"nothing to do. Give total_frames of at least {frames + config.frames_per_batch}."
        )


def load(path: Path, learner: Learner, episodes: EpisodeStatistics) -> int:
    """Restores what ``save`` wrote, and returns the frames seen.

    Raises:
        ConfigError: the checkpoint does not fit the configuration.
    """
    _load(path, _components(learner, episodes))
    return frames_of(path)


def load_policy(path: Path, policy: ActorCritic) -> None:
    """Restores the policy alone, its running statistics included.

    Raises:
        ConfigError: the checkpoint does not fit the policy.
    """
    _load(path, Checkpoint(policy=policy))


def _components(learner: Learner, episodes: EpisodeStatistics) -> Checkpoint:
    return Checkpoint(
        policy=learner.policy,
        optimizer=learner.optimizer,
        algorithm=learner.algorithm,
        reward_scaler=learner.reward_scaler,
        episodes=episodes,
        rng=GlobalRNGState(),
    )


def _load(path: Path, checkpoint: Checkpoint) -> Any:
    try:
        return checkpoint.load(path, components=list(checkpoint.components))
    except CheckpointError as error:
        raise ConfigError(
            f"The checkpoint {path} does not fit this configuration: {error} Resume with the settings its run had "
            "(network, environment), or start anew without resume."
        ) from error
