"""The training loop: collect, learn, evaluate, log, save."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from recurrl import checkpoint, not_finite
from recurrl.collector import collection_metrics, make_collector
from recurrl.collector.seeds import seed_process
from recurrl.config import NO_CELL, TrainConfig
from recurrl.envs import in_this_process, make_env, recurrent_modules
from recurrl.episodes import EpisodeStatistics
from recurrl.errors import NonFiniteError
from recurrl.evaluation import evaluate, evaluation_metrics, memory_metrics
from recurrl.garbage import start_up_spared
from recurrl.learner import Learner
from recurrl.policy import ACTION, Policy, make_policy
from recurrl.recurrent import precision
from recurrl.replay_check import check_replay
from recurrl.report import Report
from recurrl.signals import StopRequest
from recurrl.tracking import make_trackers
from recurrl.tracking.curve import plot_learning_curve
from recurrl.tracking.progress import Progress

logger = logging.getLogger(__name__)
_DEFAULT_THREADS = torch.get_num_threads()


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
        report: filled in on the way.
        request: to end after the iteration under way, with a checkpoint.
        start: the checkpoint to go on from; None to begin.

    Raises:
        ConfigError: the environment or the checkpoint cannot be used as asked.
        Interrupted: the run was asked to end.
    """
    set_process_state(config)
    policy = make_policy_for(config)
    learner, episodes = Learner(config, policy), EpisodeStatistics()
    logger.info(describe(config, policy))

    with ExitStack() as stack:
        trackers = make_trackers(config, run_dir, settings, None if start is None else start.resumed)
        stack.push(lambda error, *_: trackers.close(exit_code=0 if error is None else 1))
        report.frames = 0 if start is None else start.frames
        collector = make_collector(config, policy, report.frames)
        # Environments that failed may not close either, which must not hide why.
        stack.push(lambda error, *_: collector.shutdown(raise_on_error=error is None))
        saved = checkpoint.components(learner, episodes=episodes, report=report, carry=collector)
        if start is not None:
            start.load(saved, settings)
        progress = Progress(config.total_frames)
        stack.callback(progress.close)
        report.startup_time_s = time.time() - report.started

        stack.enter_context(request.held())
        stack.enter_context(start_up_spared())
        batches = iter(collector)
        ending = False
        while not (ending or is_last(config, report.frames)):
            with report.timing("collect"):
                batch = next(batches)
            if config.replay_check and report.frames_here == 0:
                with report.starting_up():
                    logger.info(check_replay(config, policy, batch, goes_on=start is not None))
            with report.timing("learn"), kept(run_dir, report.frames, batch, checkpoint.components(learner)):
                metrics = learner.learn(batch, progress=report.frames / config.total_frames)
            report.compiled(learner.compile_time_s)
            report.backend = backend_in_use(policy)
            episodes.update(batch)
            metrics |= report.iteration(config.frames_per_batch) | episodes.metrics() | collection_metrics(collector)
            if is_due(config, report.frames, config.evaluation.every_frames):
                metrics |= evaluation_metrics(evaluate(config.env, policy, config.evaluation.episodes, config.seed))
            if config.evaluation.memory and is_last(config, report.frames):
                metrics |= memory_metrics(config.env, policy, config.evaluation.episodes, config.seed)
            trackers.log(report.frames, metrics)
            progress.update(report.frames, metrics)
            report.take(metrics)
            ending = request.made
            if ending or is_due(config, report.frames, config.checkpoint.every_frames):
                return_mean = metrics.get("eval/return_mean")
                path = checkpoint.save(run_dir, report.frames, return_mean, saved, trackers.ids, settings)
                checkpoint.prune(run_dir, config.checkpoint.keep_last)
                report.checkpoint = str(path.relative_to(run_dir))
        plot_learning_curve(run_dir / "metrics.csv", run_dir / "learning_curve.png")


@contextmanager
def kept(run_dir: Path, frames: int, batch_NT: TensorDictBase, of: Mapping[str, checkpoint.Stateful]) -> Iterator[None]:
    """Keeps what was learnt from if it yields no numbers, and says in the error how to look at it."""
    try:
        yield
    except NonFiniteError as error:
        path = not_finite.keep(run_dir, frames, batch_NT, of)
        raise NonFiniteError(f"{error} To see where its numbers end: recurrl-check --not-finite {path}") from error


def is_last(config: TrainConfig, frames: int) -> bool:
    """Whether another iteration would exceed the frames asked for."""
    return frames + config.frames_per_batch > config.total_frames


def is_due(config: TrainConfig, frames: int, every_frames: int | None) -> bool:
    """Whether the iteration that ended at ``frames`` reached a multiple of ``every_frames``, or was the last."""
    if is_last(config, frames) or every_frames is None:
        return is_last(config, frames)
    return frames // every_frames > (frames - config.frames_per_batch) // every_frames


def set_process_state(config: TrainConfig) -> None:
    """Sets what the whole process shares, so that a sweep's jobs do not inherit it from one another."""
    seed_process(config.seed)
    torch.set_num_threads(config.num_threads or _DEFAULT_THREADS)
    tf32 = precision.resolve(config.precision.name, torch.device(config.device)) == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def make_policy_for(config: TrainConfig) -> Policy:
    """The configured policy for the configured environment, one copy of which is made and closed for its specs."""
    env = make_env(in_this_process(config.env), 1, config.seed)
    try:
        return make_policy(config, env.observation_spec[0], env.full_action_spec[0][ACTION])
    finally:
        env.close()


def backend_in_use(policy: Policy) -> str | None:
    """The recurrent backend that ran last; None for a policy without a cell."""
    modules = recurrent_modules(policy)
    return modules[0].backend_in_use if modules else None


def describe(config: TrainConfig, policy: Policy) -> str:
    """One line on what is about to run."""
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    memory = "no memory (cell=none)"
    if config.cell.name != NO_CELL:
        measures = " (measures on the first batch)" if config.backend.name == "auto" else ""
        memory = f"{config.cell.name} {config.cell.hidden_size} by backend {config.backend.name}{measures}"
    return (
        f"{config.env.id}, {config.env.num_envs} environments; {memory} on {config.device}; {parameters:,} parameters; "
        f"{config.iterations} iterations of {config.frames_per_batch} frames"
    )
