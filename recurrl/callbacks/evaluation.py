"""The callback that evaluates the policy during training."""

from __future__ import annotations

from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from recurrl import evaluation
from recurrl.callbacks.callback import Callback
from recurrl.collector.restarts import RESTARTS, Restarts
from recurrl.errors import ConfigError, EnvironmentFaultError, RunError
from recurrl.evaluation import KEPT, StoppedError
from recurrl.runtime.seeds import seeds

if TYPE_CHECKING:
    from recurrl.trainer import Trainer


class Evaluation(Callback):
    """Evaluates the policy where it is due, and adds the metrics to those of the iteration.

    A signal stops an evaluation between two steps. After an environment error it is repeated with new environments, if
    restarts are allowed.

    Args:
        restarts: counts restarts of environments.
    """

    def __init__(self, restarts: Restarts) -> None:
        self._restarts = restarts

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
        trainer.evaluation, errors, restarts = None, 0, self._restarts.count
        while trainer.evaluation is None:
            try:
                trainer.evaluation = _metrics(trainer, seeds(trainer.config.seed, errors + 1)[-1], is_last)
            except StoppedError:
                return
            except (ConfigError, RunError) as error:
                failed = EnvironmentFaultError(
                    f"In the evaluation after {trainer.frames} frames: {error} The policy is saved in "
                    f"{trainer.checkpoint}; resuming from it repeats the evaluation."
                )
                failed.__cause__ = error
                self._restarts.after(failed, errors, "an evaluation")
                errors += 1
        if RESTARTS in metrics:
            trainer.evaluation[RESTARTS] = metrics[RESTARTS] + self._restarts.count - restarts
        metrics.update(trainer.evaluation)


def _metrics(trainer: Trainer, seed: int, is_last: bool) -> dict[str, float]:
    """The metrics of an evaluation; of the last one also what the configuration adds to it."""
    env, options, stopped = trainer.config.env, trainer.config.evaluation, lambda: trainer.request.made
    returns = evaluation.evaluate(env, trainer.policy, options.episodes, seed, KEPT, stopped)
    metrics = {
        "eval/return_mean": fmean(returns),
        "eval/return_std": pstdev(returns),
        "eval/episodes": float(len(returns)),
    }
    if options.memory and is_last:
        metrics |= evaluation.memory_metrics(env, trainer.policy, options.episodes, seed, stopped)
    if options.random and is_last:
        metrics |= evaluation.random_metrics(env, options.episodes, seed, stopped)
    return metrics
