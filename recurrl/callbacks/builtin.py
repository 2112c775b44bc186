"""The callbacks of every run: consistency check, statistics of episodes, checkpoints, evaluation and logging.

Shape legend: N environments, T steps of a row.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torchrl.checkpoint import GlobalRNGState

from recurrl import checkpoint, evaluation
from recurrl.callbacks import Callback
from recurrl.callbacks.diagnosis import Diagnosis
from recurrl.checkpoint import files, rank_states
from recurrl.collector.collector import STALENESS
from recurrl.collector.restarts import RESTARTS
from recurrl.config import EnvConfig, TrainConfig
from recurrl.consistency import check_consistency
from recurrl.envs.batched import episodes_ended
from recurrl.errors import ConfigError, EnvError, NonFiniteError, RunError
from recurrl.evaluation import KEPT, StoppedError
from recurrl.keys import EPISODE_LENGTH, EPISODE_RETURN
from recurrl.policy import Policy
from recurrl.returns import WINDOW, sample_std
from recurrl.runtime.metrics import floats
from recurrl.runtime.ranks import world
from recurrl.runtime.run_directory import CHECKPOINTS, CURVE, METRICS
from recurrl.runtime.seeds import seeds
from recurrl.tracking import Tracker
from recurrl.tracking.curve import plot_learning_curve
from recurrl.tracking.progress import Progress

if TYPE_CHECKING:
    from recurrl.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class ConsistencyCheck(Callback):
    """Runs the consistency check once, on the first rollout that weights of this process collected.

    A resumed run may begin with rollouts that were collected ahead of learning, by weights that were not saved.

    Attributes:
        config: this rank's part of the run's configuration.
    """

    config: TrainConfig
    _done: bool = False
    _updates: int = 0
    _first: Policy | None = None

    def on_rollout(self, trainer: Trainer, rollout: TensorDictBase) -> None:
        """Checks the rollout if it is the first one that can be checked.

        Raises:
            ConsistencyError: the update would not see what the rollout saw.
        """
        if self._done:
            return
        staleness = trainer.collector.metrics().get(STALENESS, 0.0)
        if staleness in (0, self._updates):
            policy = self._first if staleness else trainer.policy
            assert policy is not None
            logger.info(check_consistency(policy, rollout, self.config, resumed=trainer.frames > 0))
            self._done, self._first = True, None
        elif self._first is None:
            self._first = deepcopy(trainer.policy)
        self._updates += 1


class EpisodeStatistics(Callback):
    """The last episodes' returns (unscaled, undiscounted), lengths and truncations; on rank 0 those of all ranks."""

    def __init__(self) -> None:
        self.episodes: deque[list[float]] = deque(maxlen=WINDOW)
        """Return, length, and 1 if truncated, of each of the last ``WINDOW`` episodes."""
        self.count = 0

    def on_rollout(self, trainer: Trainer, rollout: TensorDictBase) -> dict[str, float]:
        """Adds the episodes that ended within the rollout, in order of time.

        Returns:
            Means and standard deviations over the last episodes.
        """
        after = rollout["next"].transpose(0, 1)
        done_TN1 = episodes_ended(after)
        step_TN1 = torch.arange(len(done_TN1), device=done_TN1.device).view(-1, 1, 1).expand_as(done_TN1)
        truncated = done_TN1 & ~after["terminated"]
        # One table, so that the device is synchronised only once.
        table_TN4 = torch.cat((step_TN1, after[EPISODE_RETURN], after[EPISODE_LENGTH], truncated), -1)
        # A stable sort keeps the order of the environments within a step, as in a run of one process.
        all_ranks = world().gather_objects(table_TN4[done_TN1.squeeze(-1)].tolist())
        new = sorted(chain.from_iterable(all_ranks), key=itemgetter(0))
        self.episodes.extend(episode for _, *episode in new)
        self.count += len(new)
        returns, lengths, truncated = zip(*self.episodes or [[math.nan] * 3], strict=True)
        return {
            "train/return_mean": fmean(returns),
            "train/episode_length_mean": fmean(lengths),
            "train/episodes": float(self.count),
            "train/return_std": sample_std(returns) if self.episodes else math.nan,
            "train/truncated_fraction": fmean(truncated),
        }

    def state_dict(self) -> dict[str, Any]:
        """The last episodes, and the number of all, for checkpoints."""
        return {"episodes": list(self.episodes), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the last episodes, and the number of all."""
        self.episodes, self.count = deque(state["episodes"], maxlen=WINDOW), state["count"]


@dataclass(eq=False)
class Checkpoints(Callback):
    """Restores the run at its start, and saves it when a checkpoint or an evaluation is due, and at its end.

    Attributes:
        settings: the whole configuration as plain values.
        trackers: destinations of metrics, by name; checkpoints store the run's id in each.
        start: the checkpoint to resume from, on rank 0; None for a new run. It is copied if it is in another directory.
        rewrites: write a checkpoint again once it is complete, because users' callbacks may have changed the state.
    """

    settings: Mapping[str, Any]
    trackers: Mapping[str, Tracker]
    start: checkpoint.Checkpoint | None
    rewrites: bool = False
    _saved_frames: int | None = None

    def on_start(self, trainer: Trainer) -> None:
        """Gives all ranks the state of rank 0, or of the checkpoint.

        Raises:
            ConfigError: the checkpoint does not fit the configuration.
        """
        self._components = {**trainer.algorithm.components(), "rng": GlobalRNGState(), "callbacks": trainer.callbacks}
        self._components |= {rank_states.EPISODES: trainer.collector, "summary": trainer.summary}
        if self.start is None:
            rank_states.broadcast_states(self._components)
            return
        self.start.load(self._components, self.settings)
        if not self.start.is_in(trainer.run_dir):
            self.start = self.start.copied_to(trainer.run_dir)
        # The count of all ranks so far; the other ranks begin at zero.
        trainer.restarts.count = int(self.start.metrics.get(RESTARTS, 0))
        self.start.replace_later_ones()
        trainer.summary.checkpoint = f"{CHECKPOINTS}/{self.start.path.name}"
        if self.start.is_complete:
            trainer.summary.update(self.start.metrics)
        else:
            trainer.metrics = self.start.metrics

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Saves the run if it is due."""
        config, trainer.checkpoint = trainer.config, None
        if self.start is not None and trainer.summary.frames_here == 0:
            trainer.checkpoint = self.start.path  # the evaluation of its iteration is repeated
        elif any(map(trainer.is_due, (config.checkpoint.every_frames, config.evaluation.every_frames))):
            self._save(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Saves the last iteration of a run that ends early."""
        if trainer.summary.frames_here and self._saved_frames != trainer.frames:
            self._save(trainer)

    def complete(self, trainer: Trainer) -> None:
        """Completes the last iteration's checkpoint, if there is one, and removes older checkpoints.

        Called on rank 0 once the iteration is logged, because a run that resumes from an incomplete checkpoint first
        evaluates and logs that checkpoint's iteration.
        """
        if trainer.checkpoint is None or trainer.is_interrupted:
            return
        if self.rewrites:
            self._save(trainer, is_complete=True)
        else:
            files.complete(trainer.checkpoint, trainer.metrics)
        checkpoint.prune(trainer.run_dir, trainer.config.checkpoint.keep_last)
        trainer.checkpoint = None

    def _save(self, trainer: Trainer, is_complete: bool = False) -> None:
        self._saved_frames = trainer.frames
        ids = {} if self.start is None else dict(self.start.resumed.ids)
        ids |= {name: str(tracker.id) for name, tracker in self.trackers.items() if tracker.id is not None}
        to_save = (trainer.metrics, self._components, ids, self.settings, is_complete)
        try:
            trainer.checkpoint = checkpoint.save(trainer.run_dir, trainer.frames, *to_save)
        except RunError as error:
            # A worker failed in a rollout ahead. Now the workers have no episodes to save, and the rest can be.
            if world().size == 1 and not isinstance(error, NonFiniteError):
                trainer.checkpoint = checkpoint.save(trainer.run_dir, trainer.frames, *to_save)
            raise
        finally:
            if trainer.checkpoint is not None:
                trainer.summary.checkpoint = f"{CHECKPOINTS}/{trainer.checkpoint.name}"


class Evaluation(Callback):
    """Evaluates the policy when an evaluation is due, and adds its metrics to the iteration's.

    A signal stops an evaluation between two steps. After an environment error it is repeated with new environments, if
    restarts are allowed.

    Args:
        env: options of this rank's share of the environments, so that a simulator is shared with training.
    """

    def __init__(self, env: EnvConfig) -> None:
        self._env = env

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Evaluates if it is due, unless the run was stopped: :meth:`on_end` does it then.

        Raises:
            EnvError: an environment failed.
            RunError: too many restarts in a row failed.
        """
        if not trainer.stopped and trainer.is_due(trainer.config.evaluation.every_frames):
            self._evaluate(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Evaluates a run that a callback stopped, unless it was stopped before the first iteration."""
        if trainer.stopped and trainer.metrics:
            self._evaluate(trainer)

    def _evaluate(self, trainer: Trainer) -> None:
        metrics, errors, restarts = None, 0, trainer.restarts.count
        while metrics is None:
            try:
                metrics = _evaluation_metrics(trainer, self._env, seeds(trainer.config.seed, errors + 1)[-1])
            except StoppedError:
                trainer.is_interrupted = True
                return
            except (ConfigError, RunError) as error:
                failed = EnvError(
                    f"In the evaluation after {trainer.frames} frames: {error} The policy is saved in "
                    f"{trainer.checkpoint}; resuming from it repeats the evaluation."
                )
                failed.__cause__ = error
                trainer.restarts.record(failed, errors, "an evaluation")
                errors += 1
        if RESTARTS in trainer.metrics:
            metrics[RESTARTS] = trainer.metrics[RESTARTS] + trainer.restarts.count - restarts
        trainer.metrics.update(metrics)


def _evaluation_metrics(trainer: Trainer, env: EnvConfig, seed: int) -> dict[str, float]:
    """The metrics of an evaluation. The last one also includes the configured ablations (memory, random actions)."""
    options, stopped = trainer.config.evaluation, lambda: trainer.request.number > 0
    if not options.episodes:  # the most recent training episodes are used instead
        if not trainer.metrics["train/episodes"]:
            return {}
        last = {f"eval/{name}": trainer.metrics[f"train/{name}"] for name in ("return_mean", "return_std")}
        return {**last, "eval/episodes": min(trainer.metrics["train/episodes"], WINDOW)}
    returns = evaluation.evaluate(env, trainer.policy, options.episodes, seed, KEPT, stopped)
    metrics = {
        "eval/return_mean": fmean(returns),
        "eval/return_std": sample_std(returns),
        "eval/episodes": float(len(returns)),
    }
    if options.memory and trainer.is_last:
        metrics |= evaluation.memory_metrics(env, trainer.policy, options.episodes, seed, stopped)
    if options.random and trainer.is_last:
        metrics |= evaluation.random_metrics(env, options.episodes, seed, stopped)
    return metrics


@dataclass(eq=False)
class Log(Callback):
    """Logs each iteration, then completes its checkpoint. Draws the learning curve at the end.

    Attributes:
        trackers: destinations of metrics, the file first.
        diagnosis: the callback that finds the warnings for the summary.
        checkpoints: the callback that writes checkpoints; it completes that of each logged iteration.
        progress: the line on the terminal.
    """

    trackers: Collection[Tracker]
    diagnosis: Diagnosis
    checkpoints: Checkpoints
    progress: Progress

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Logs the iteration, unless the run was stopped: it is then first evaluated, and logged by :meth:`on_end`."""
        if not trainer.stopped:
            self._log(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Logs the last iteration of a stopped run, completes its checkpoint, and draws the learning curve."""
        if trainer.stopped and trainer.metrics and not trainer.is_interrupted:
            self._log(trainer)
        self.checkpoints.complete(trainer)
        plot_learning_curve(trainer.run_dir / METRICS, trainer.run_dir / CURVE)

    def _log(self, trainer: Trainer) -> None:
        summary, metrics = trainer.summary, floats(trainer.metrics)
        summary.warnings = self.diagnosis.warnings(metrics)
        for tracker in self.trackers:
            tracker.log(trainer.frames, dict(metrics))  # its own, which it may change
        summary.update(metrics)
        self.progress.update(trainer.frames, metrics, warning=next(reversed(summary.warnings), ""))
        self.checkpoints.complete(trainer)

    def close(self, failed: bool) -> None:
        """Closes the destinations; if one fails, the others are closed nevertheless."""
        self.progress.close()
        with ExitStack() as stack:
            for tracker in self.trackers:
                stack.callback(tracker.close, failed)
