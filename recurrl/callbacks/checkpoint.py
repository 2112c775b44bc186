"""Callbacks that write checkpoints: before the evaluation, whose metrics are added once the iteration is logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recurrl import checkpoint
from recurrl.callbacks.callback import Callback
from recurrl.collector.restarts import RESTARTS, Restarts
from recurrl.config import TrainConfig
from recurrl.runtime.run_directory import CHECKPOINTS

if TYPE_CHECKING:
    from recurrl.trainer import Trainer


class SaveCheckpoint(Callback):
    """Restores the run at its start, and saves it where that or an evaluation is due, and when it ends.

    Args:
        config: of the whole run.
        settings: the whole configuration as plain values.
        tracker_ids: the run's ids at destinations of metrics.
        start: the checkpoint to resume from, on rank 0; None for a new run.
        restarts: counts restarts of environments.
    """

    def __init__(
        self,
        config: TrainConfig,
        settings: Mapping[str, Any],
        tracker_ids: Mapping[str, str],
        start: checkpoint.Checkpoint | None,
        restarts: Restarts,
    ) -> None:
        self._periods = config.checkpoint.every_frames, config.evaluation.every_frames
        self._settings, self._tracker_ids = settings, tracker_ids
        self._start, self._restarts = start, restarts
        self._saved_frames: int | None = None

    def on_start(self, trainer: Trainer) -> None:
        """Gives all ranks the state of rank 0, or of the checkpoint.

        Raises:
            ConfigError: the checkpoint does not fit the configuration.
        """
        self._components = checkpoint.components(
            trainer.algorithm, callbacks=trainer.callbacks, collector_state=trainer.collector, report=trainer.report
        )
        checkpoint.restore(self._start, self._components, self._settings)
        self._restarts.count = 0
        if self._start is None:
            return
        metrics = self._start.metrics | (self._start.evaluation or {})
        # Of all ranks; the others count theirs from here on.
        self._restarts.count = int(metrics.get(RESTARTS, 0))
        if self._start.is_in(trainer.run_dir):
            trainer.report.checkpoint = f"{CHECKPOINTS}/{self._start.path.name}"
        if self._start.evaluation is None:
            trainer.metrics = self._start.metrics
        else:
            trainer.report.update(metrics)

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Saves the run if it is due."""
        if self._start is not None and self._start.is_in(trainer.run_dir) and self._start.frames == trainer.frames:
            trainer.checkpoint = self._start.path  # of an iteration whose evaluation is repeated
        elif any(map(trainer.is_due, self._periods)):
            self._save(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Saves the last iteration of a run that ends early."""
        if trainer.report.frames_here and self._saved_frames != trainer.frames:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        self._saved_frames = trainer.frames
        trainer.checkpoint = checkpoint.save(
            trainer.run_dir, trainer.frames, trainer.metrics, self._components, self._tracker_ids, self._settings
        )
        trainer.report.checkpoint = f"{CHECKPOINTS}/{trainer.checkpoint.name}"


class CompleteCheckpoint(Callback):
    """Adds the evaluation to the last iteration's checkpoint once it is logged, and removes older checkpoints.

    A checkpoint without it belongs to an iteration that a resumed run has yet to evaluate and to log.

    Args:
        keep_last: how many to keep beside the best; None for all.
    """

    def __init__(self, keep_last: int | None) -> None:
        self._keep_last = keep_last

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Completes the checkpoint, if there is one."""
        if not trainer.stopped:
            self.on_end(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Completes one that was written at the end."""
        if trainer.checkpoint is not None and trainer.evaluation is not None:
            checkpoint.add_evaluation(trainer.checkpoint, trainer.evaluation)
            checkpoint.prune(trainer.run_dir, self._keep_last)
            trainer.checkpoint = None
