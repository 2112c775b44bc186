"""The callback that logs: destinations of metrics, the run's summary, and progress on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recurrl import checkpoint
from recurrl.callbacks.callback import Callback
from recurrl.callbacks.diagnosis import Diagnosis
from recurrl.runtime.run_directory import CURVE, METRICS
from recurrl.tracking import Trackers
from recurrl.tracking.curve import plot_learning_curve
from recurrl.tracking.progress import Progress

if TYPE_CHECKING:
    from recurrl.trainer import Trainer


class Log(Callback):
    """Logs each iteration, and draws the learning curve at the end.

    Args:
        trackers: destinations of metrics.
        diagnosis: knows the warnings for the summary.
        total_frames: of the run, for the progress bar.
    """

    def __init__(self, trackers: Trackers, diagnosis: Diagnosis, total_frames: int) -> None:
        self._trackers, self._diagnosis = trackers, diagnosis
        self._progress = Progress(total_frames)

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Logs the iteration, unless an evaluation of it is to come or to be repeated."""
        if trainer.evaluation is None or trainer.stopped:
            return
        self._log(trainer, metrics)

    def on_end(self, trainer: Trainer) -> None:
        """Draws the learning curve, and offers the best checkpoint to the trackers unless a signal ended the run."""
        if trainer.stopped and trainer.evaluation is not None:
            self._log(trainer, trainer.metrics)
        plot_learning_curve(trainer.run_dir / METRICS, trainer.run_dir / CURVE)
        if not trainer.request.made:
            self._trackers.log_checkpoint(lambda: checkpoint.best(trainer.run_dir))

    def _log(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        report = trainer.report
        report.warnings = self._diagnosis.warnings(metrics)
        self._trackers.log(trainer.frames, metrics)
        report.update(metrics)
        self._progress.update(trainer.frames, metrics, warning=next(reversed(report.warnings), ""))

    def close(self, failed: bool) -> None:
        """Closes the destinations."""
        self._progress.close()
        self._trackers.close(exit_code=int(failed))
