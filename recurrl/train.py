"""The training loop: collect, learn, save, evaluate, log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.collectors import BaseCollector

from recurrl import checkpoint
from recurrl.checkpoint import not_finite
from recurrl.collector import collection_metrics, make_collector
from recurrl.collector.episodes import EpisodeStatistics
from recurrl.collector.restarts import RestartingCollector
from recurrl.collector.seeds import seed_process, seeds
from recurrl.config import NO_CELL, TrainConfig
from recurrl.envs import make_env, recurrent_modules
from recurrl.errors import ConfigError, EnvironmentFaultError, NonFiniteError, RunError
from recurrl.evaluation import KEPT, StoppedError, evaluate, evaluation_metrics, memory_metrics, random_metrics
from recurrl.learning.learner import Learner
from recurrl.policy import ACTION, Policy, make_policy
from recurrl.recurrent import precision
from recurrl.replay_check import check_replay
from recurrl.runtime.garbage import start_up_spared
from recurrl.runtime.report import Report
from recurrl.runtime.signals import StopRequest
from recurrl.tracking import make_trackers
from recurrl.tracking.curve import plot_learning_curve
from recurrl.tracking.progress import Progress

logger = logging.getLogger(__name__)
_DEFAULT_THREADS = torch.get_num_threads()
_STOP_NOTICE = (
    "finishing and saving the current iteration; an evaluation stops and is repeated on resume. A second signal ends "
    "the run immediately. To resume: recurrl-train resume={}"
)


def train(
    config: TrainConfig,
    run_dir: Path,
    settings: Mapping[str, Any],
    report: Report,
    request: StopRequest,
    start: checkpoint.Saved | None = None,
) -> None:
    """Trains a policy as configured, from scratch or from a checkpoint.

    Args:
        config: a checked configuration.
        run_dir: where everything is written.
        settings: the whole configuration as plain values, for the trackers.
        report: updated during the run.
        request: ends the run after the current iteration, with a checkpoint; an evaluation stops between two steps.
        start: the checkpoint to resume from; None for a new run.

    Raises:
        ConfigError: the environment or the checkpoint cannot be used as asked.
        Interrupted: the run was asked to end.
    """
    set_process_state(config)
    policy = make_policy_for(config)
    learner, episodes = Learner(config, policy), EpisodeStatistics()
    logger.info(describe(config, policy))
    report.has_begun = True

    with ExitStack() as stack:
        trackers = make_trackers(config, run_dir, settings, None if start is None else start.resumed)
        stack.push(lambda error, *_: trackers.close(exit_code=0 if error is None else 1))
        report.frames = 0 if start is None else start.frames
        collector = make_collector(config, policy, report.frames)
        # Failed environments may also fail to close, which must not hide the first error.
        stack.push(lambda error, *_: collector.shutdown(raise_on_error=error is None))
        parts = checkpoint.components(learner, episodes=episodes, report=report, collector_state=collector)
        if start is not None:
            resume(start, run_dir, parts, settings, report, collector)
        progress = Progress(config.total_frames)
        stack.callback(progress.close)
        report.startup_time_s = time.time() - report.started

        stack.enter_context(request.held(_STOP_NOTICE.format(run_dir)))
        stack.enter_context(start_up_spared())
        # The row of a checkpoint whose evaluation was interrupted is yet to be logged.
        unlogged = [start.metrics] if start is not None and start.evaluation is None else []
        for metrics in chain(unlogged, iterations(config, run_dir, learner, episodes, collector, report)):
            path = None if start is None else start.path_in(run_dir, report.frames)
            if path is None and is_saved(config, report.frames, request.made):
                path = checkpoint.save(run_dir, report.frames, metrics, parts, trackers.ids, settings)
            if path is not None:
                report.checkpoint = f"{checkpoint.FOLDER}/{path.name}"
            evaluation = evaluated(config, policy, collector, report.frames, path, request)
            if evaluation is None:
                break
            metrics |= evaluation
            trackers.log(report.frames, metrics)
            progress.update(report.frames, metrics)
            report.take(metrics)
            if path is not None:
                checkpoint.add_evaluation(path, evaluation)
                checkpoint.prune(run_dir, config.checkpoint.keep_last)
                if request.made:
                    break
        plot_learning_curve(run_dir / "metrics.csv", run_dir / "learning_curve.png")


def iterations(
    config: TrainConfig,
    run_dir: Path,
    learner: Learner,
    episodes: EpisodeStatistics,
    collector: BaseCollector | RestartingCollector,
    report: Report,
) -> Iterator[dict[str, float]]:
    """Collects and learns while frames are left, and yields the metrics of each iteration."""
    batches = iter(collector)
    while not is_last(config, report.frames):
        with report.timing("collect"):
            batch = next(batches)
        if config.replay_check and report.frames_here == 0:
            with report.starting_up():
                logger.info(check_replay(config, learner.policy, batch, goes_on=report.frames > 0))
        with report.timing("learn"), save_batch_on_nan(run_dir, report.frames, batch, checkpoint.components(learner)):
            metrics = learner.learn(batch, progress=config.progress(report.frames))
        report.compiled(learner.compile_time_s)
        report.backend = backend_in_use(learner.policy)
        episodes.update(batch)
        yield metrics | report.iteration(config.frames_per_batch) | episodes.metrics() | collection_metrics(collector)


def evaluated(
    config: TrainConfig,
    policy: Policy,
    collector: BaseCollector | RestartingCollector,
    frames: int,
    path: Path | None,
    request: StopRequest,
) -> dict[str, float] | None:
    """The metrics of an evaluation if one is due; None if the run was asked to end meanwhile.

    If collection survives faults of environments, so does this, in new environments with other seeds.

    Raises:
        EnvironmentFaultError: an environment failed.
        RunError: too many restarts in a row failed.
    """
    if not is_due(config, frames, config.evaluation.every_frames):
        return {}
    attempt = 0
    while True:
        given = (config.env, policy, config.evaluation.episodes, seeds(config.seed, attempt + 1)[-1])
        try:
            metrics = evaluation_metrics(evaluate(*given, KEPT, lambda: request.made))
            if config.evaluation.memory and is_last(config, frames):
                metrics |= memory_metrics(*given, lambda: request.made)
            if config.evaluation.random and is_last(config, frames):
                metrics |= random_metrics(config.env, *given[2:], lambda: request.made)
        except StoppedError:
            return None
        except (ConfigError, RunError) as error:
            fault = EnvironmentFaultError(
                f"In the evaluation after {frames} frames: {error} The policy is saved in {path}; resuming from it "
                "repeats the evaluation."
            )
            if not isinstance(collector, RestartingCollector):
                raise fault from error
            collector.count_restart(fault, attempt, "an evaluation")
            attempt += 1
        else:
            return metrics if attempt == 0 else metrics | collection_metrics(collector)


def resume(
    start: checkpoint.Saved,
    run_dir: Path,
    parts: Mapping[str, checkpoint.Stateful],
    settings: Mapping[str, Any],
    report: Report,
    collector: BaseCollector | RestartingCollector,
) -> None:
    """Loads a checkpoint, and the result of the evaluation after it."""
    start.load(parts, settings)
    if start.path_in(run_dir, start.frames) is not None:
        report.checkpoint = f"{checkpoint.FOLDER}/{start.path.name}"
    if start.evaluation is not None:
        report.take(start.metrics | start.evaluation)
        if isinstance(collector, RestartingCollector):
            collector.restarts = report.restarts


@contextmanager
def save_batch_on_nan(
    run_dir: Path, frames: int, batch_NT: TensorDictBase, of: Mapping[str, checkpoint.Stateful]
) -> Iterator[None]:
    """Saves the batch if learning produces NaN or Inf, and adds to the error how to diagnose it."""
    try:
        yield
    except NonFiniteError as error:
        raise NonFiniteError(f"{error} {not_finite.save_batch(run_dir, frames, batch_NT, of)}") from error


def is_saved(config: TrainConfig, frames: int, ending: bool) -> bool:
    """True if a checkpoint follows the iteration that ended at ``frames``, as before an evaluation and at the end."""
    periods = (config.checkpoint.every_frames, config.evaluation.every_frames)
    return ending or any(is_due(config, frames, every_frames) for every_frames in periods)


def is_last(config: TrainConfig, frames: int) -> bool:
    """True if another iteration would exceed ``total_frames``."""
    return frames + config.frames_per_batch > config.total_frames


def is_due(config: TrainConfig, frames: int, every_frames: int | None) -> bool:
    """True if the iteration that ended at ``frames`` reached a multiple of ``every_frames``, or was the last."""
    if is_last(config, frames) or every_frames is None:
        return is_last(config, frames)
    return frames // every_frames > (frames - config.frames_per_batch) // every_frames


def set_process_state(config: TrainConfig) -> None:
    """Sets process-wide state, so that a sweep's jobs do not inherit it from one another."""
    seed_process(config.seed)
    torch.set_num_threads(config.num_threads or _DEFAULT_THREADS)
    tf32 = precision.resolve(config.precision.name, torch.device(config.device)) == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def make_policy_for(config: TrainConfig) -> Policy:
    """The configured policy for the configured environment, one copy of which is made and closed for its specs."""
    env = make_env(config.env, 1, config.seed)
    try:
        return make_policy(config, env.observation_spec[0], env.full_action_spec[0][ACTION])
    finally:
        env.close()


def backend_in_use(policy: Policy) -> str | None:
    """The recurrent backend that ran last; None for a policy without a cell."""
    modules = recurrent_modules(policy)
    return modules[0].backend_in_use if modules else None


def describe(config: TrainConfig, policy: Policy) -> str:
    """A one-line description of the run."""
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    memory = "no memory (cell=none)"
    if config.cell.name != NO_CELL:
        measures = " (measures on the first batch)" if config.backend.name == "auto" else ""
        memory = f"{config.cell.name} {config.cell.hidden_size} by backend {config.backend.name}{measures}"
    return (
        f"{config.env.id}, {config.env.num_envs} environments; {memory} on {config.device}; {parameters:,} parameters; "
        f"{config.iterations} iterations of {config.frames_per_batch} frames"
    )
