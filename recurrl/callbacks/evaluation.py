"""The callback that evaluates the policy during training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recurrl.callbacks.callback import Callback
from recurrl.collector.restarts import RESTARTS, Restarts
from recurrl.evaluation import Evaluator

if TYPE_CHECKING:
    from recurrl.trainer import Trainer


class Evaluation(Callback):
    """Evaluates the policy where it is due, and adds the metrics to those of the iteration.

    Args:
        evaluator: evaluates.
        restarts: counts restarts of environments, also those of an evaluation.
    """

    def __init__(self, evaluator: Evaluator, restarts: Restarts) -> None:
        self._evaluator, self._restarts = evaluator, restarts

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Evaluates if it is due.

        Raises:
            EnvironmentFaultError: an environment failed.
            RunError: too many restarts in a row failed.
        """
        if trainer.is_due(trainer.config.evaluation.every_frames):
            self._evaluate(trainer, metrics, trainer.is_last)

    def on_end(self, trainer: Trainer) -> None:
        """Evaluates a run that a callback stopped as at its end."""
        if trainer.stopped:
            self._evaluate(trainer, trainer.metrics, is_last=True)

    def _evaluate(self, trainer: Trainer, metrics: dict[str, float], is_last: bool) -> None:
        before = self._restarts.count
        found = self._evaluator.evaluate(trainer.frames, trainer.checkpoint, is_last)
        if found is not None and RESTARTS in metrics:
            found[RESTARTS] = metrics[RESTARTS] + self._restarts.count - before
        trainer.evaluation = found
        metrics.update(found or {})
