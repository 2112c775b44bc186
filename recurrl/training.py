"""The training loop: collect, learn, save, evaluate, log."""

import logging
import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from recurrl import checkpoint
from recurrl.agent import Agent
from recurrl.build import (
    describe,
    make_collector,
    make_diagnosis,
    make_learner,
    make_policy_for,
    make_replay_check,
    set_process_state,
    share_of,
)
from recurrl.checkpoint import not_finite, ranks
from recurrl.checkpoint.files import Held
from recurrl.collector.episodes import EpisodeStatistics
from recurrl.collector.restarts import RESTARTS, Restarts
from recurrl.collector.rollouts import RolloutCollector
from recurrl.config import TrainConfig
from recurrl.errors import naming
from recurrl.evaluation import Evaluator, random_numbers_restored
from recurrl.learning.diagnosis import Diagnosis
from recurrl.learning.learner import Learner
from recurrl.learning.metrics import merged
from recurrl.policy import Policy
from recurrl.pretraining import pretrain
from recurrl.runtime.garbage import start_up_spared
from recurrl.runtime.ranks import world
from recurrl.runtime.report import Report
from recurrl.runtime.run_directory import CHECKPOINTS, CURVE, METRICS
from recurrl.runtime.seeds import seed_of_rank, seed_process
from recurrl.runtime.signals import StopRequest
from recurrl.tracking import Trackers, make_trackers
from recurrl.tracking.curve import plot_learning_curve
from recurrl.tracking.progress import Progress

logger = logging.getLogger(__name__)
_NEXT, _SAVE, _END = "next", "save", "end"
"""What rank 0 tells the others to do: another iteration, hand in their state for a checkpoint, or end."""
_STOP_NOTICE = (
    "finishing and saving the current iteration; an evaluation stops and is repeated on resume. A second signal ends "
    "the run immediately. To resume: recurrl-train resume={}"
)


class Callback(Protocol):
    """Called during a run."""

    def on_iteration(self, metrics: Mapping[str, float], policy: Agent) -> bool | None:
        """Called after each iteration, before it is logged. What it draws at random does not change the run.

        Args:
            metrics: of the iteration, with those of the evaluation after it if there was one, and ``frames``.
            policy: acts with the parameters that the iteration learned.

        Returns:
            True to stop: the run is saved and evaluated as at its end, with the status ``stopped``. It can be resumed.
        """


def train(
    config: TrainConfig,
    run_dir: Path,
    settings: Mapping[str, Any],
    report: Report,
    request: StopRequest,
    start: checkpoint.Checkpoint | None = None,
    given: Collection[str] = (),
    callbacks: Sequence[Callback] = (),
) -> None:
    """Trains a policy as configured, from scratch or from a checkpoint. Of several ranks, rank 0 calls it.

    Args:
        config: a checked configuration.
        run_dir: where everything is written.
        settings: the whole configuration as plain values, for the trackers.
        report: updated during the run.
        request: ends the run after the current iteration, with a checkpoint; an evaluation stops between two steps.
        start: the checkpoint to resume from; None for a new run.
        given: the keys of values that the user gave; those that have no effect in this environment are rejected.
        callbacks: called after each iteration.

    Raises:
        ConfigError: the environment or the checkpoint cannot be used as asked.
        Interrupted: the run was asked to end.
    """
    share = share_of(config, world())
    set_process_state(share)
    policy = make_policy_for(share, given)
    if start is None:
        # Before the learner is made, because an algorithm may keep a copy of the first policy.
        report.pretrain_log_likelihood = warm_start(config, policy, given)
    learner, episodes, diagnosis = make_learner(share, policy), EpisodeStatistics(), make_diagnosis(config, policy)
    logger.info(describe(config, policy))
    report.has_begun = True

    with ExitStack() as stack:
        trackers = make_trackers(config.logger, run_dir, settings, None if start is None else start.resumed)
        stack.push(lambda error, *_: trackers.close(exit_code=0 if error is None else 1))
        report.frames = 0 if start is None else start.frames
        restarts = Restarts(config.collector.on_fault)
        collector = make_collector(share, policy, report.frames, restarts)
        # Failed environments may also fail to close, which must not hide the first error.
        stack.push(lambda error, *_: collector.shutdown(raise_on_error=error is None))
        parts = checkpoint.components(
            learner, episodes=episodes, diagnosis=diagnosis, report=report, collector_state=collector
        )
        if start is None:
            ranks.begin(parts)
        else:
            start.resume(run_dir, parts, settings, report)
            # With those of other ranks, which count their own from here on.
            restarts.count = int(max(restarts.count, report.restarts, start.metrics.get(RESTARTS, 0)))
        evaluator = Evaluator(
            config.env, policy, config.evaluation, config.seed, restart=restarts.after, stopped=lambda: request.made
        )
        progress = Progress(config.total_frames)
        stack.callback(progress.close)
        report.startup_time_s = time.time() - report.started

        stack.enter_context(request.held(_STOP_NOTICE.format(run_dir)))
        stack.enter_context(start_up_spared())
        # If the evaluation after a checkpoint was interrupted, its iteration is not logged yet.

        def save(metrics: Mapping[str, float]) -> Path:
            world().broadcast(_SAVE)
            own = {ranks.RANKS: Held(ranks.own_states(parts))} if world().size > 1 else {}
            path = checkpoint.save(run_dir, report.frames, metrics, {**parts, **own}, trackers.ids, settings)
            report.checkpoint = f"{CHECKPOINTS}/{path.name}"
            return path

        agent = Agent(policy, config.env) if callbacks else None
        stopping = False
        unlogged = [start.metrics] if start is not None and start.evaluation is None else []
        learnt = iterations(config, run_dir, learner, episodes, diagnosis, collector, report, request)
        for metrics in chain(unlogged, learnt):
            path = None if start is None else start.path_in(run_dir, report.frames)
            if path is None and is_saved(config, report.frames, request.made):
                path = save(metrics)
            of_others = metrics.get(RESTARTS, 0.0) - restarts.count
            is_evaluated = is_due(config, report.frames, config.evaluation.every_frames)
            last = is_last(config, report.frames)
            evaluation = evaluator.evaluate(report.frames, path, last) if is_evaluated else {}
            if evaluation is not None and stops(callbacks, metrics | evaluation, report.frames, agent) and not last:
                stopping, path = True, path or save(metrics)
                evaluation = evaluator.evaluate(report.frames, path, is_last=True)
            if evaluation is None:
                break
            evaluation |= restarts.metrics(of_others)
            metrics |= evaluation
            trackers.log(report.frames, metrics)
            report.take(metrics)
            report.warnings = diagnosis.warnings(metrics)
            progress.update(report.frames, metrics, warning=next(reversed(report.warnings), ""))
            if path is not None:
                checkpoint.add_evaluation(path, evaluation)
                checkpoint.prune(run_dir, config.checkpoint.keep_last)
            if stopping or (request.made and path is not None):
                break
        world().broadcast(_END)
        conclude(run_dir, trackers, is_interrupted=request.made)
    report.status = "stopped" if stopping else "completed"


def conclude(run_dir: Path, trackers: Trackers, is_interrupted: bool) -> None:
    """Draws the learning curve, and offers the best checkpoint to the trackers unless the run is to be resumed."""
    plot_learning_curve(run_dir / METRICS, run_dir / CURVE)
    if not is_interrupted:
        trackers.log_checkpoint(lambda: checkpoint.best(run_dir))


def warm_start(config: TrainConfig, policy: Policy, given: Collection[str]) -> float | None:
    """Gives the policy of a new run what the configuration asks for: another run's weights, what recordings teach.

    Returns:
        The mean log-likelihood of recorded actions after pretraining, if there was any.

    Raises:
        ConfigError: there is no such run or recording, or it does not fit.
    """
    if config.init_from is not None:
        with naming(f"init_from={config.init_from}"):
            lines = checkpoint.warm_start(policy, Path(config.init_from), "policy.initial_std" in given)
        for line in lines:
            logger.info(line)
    if config.pretrain.folder is None:
        return None
    found = pretrain(policy, config.env, config.pretrain, config.slice_len, config.minibatch_slices)
    return found["log_likelihood"]


def stops(callbacks: Sequence[Callback], metrics: Mapping[str, float], frames: int, policy: Agent | None) -> bool:
    """Calls the callbacks; True if one of them stops the run."""
    if policy is None:
        return False
    with random_numbers_restored():
        # All are called, whatever the first ones return.
        asked = [callback.on_iteration({"frames": frames, **metrics}, policy) for callback in callbacks]
    return True in asked


def iterations(
    config: TrainConfig,
    run_dir: Path,
    learner: Learner,
    episodes: EpisodeStatistics,
    diagnosis: Diagnosis,
    collector: RolloutCollector,
    report: Report,
    request: StopRequest,
) -> Iterator[dict[str, float]]:
    """Collects and learns while frames are left, and yields the metrics of each iteration, on rank 0 of all ranks."""
    batches = iter(collector)
    while not is_last(config, report.frames):
        if world().rank == 0:
            world().broadcast(_NEXT)
        with report.timing("collect"):
            batch = next(batches)
        if config.replay_check and report.frames_here == 0:
            with report.starting_up():
                check = make_replay_check(share_of(config, world()), learner.policy)
                logger.info(check(batch, resumed=report.frames > 0))
        with report.timing("learn"), not_finite.batch_saved(run_dir, report.frames, learner):
            metrics = learner.learn(batch, progress=config.progress(report.frames))
        report.compiled(learner.compile_time_s)
        report.backend = next((module.backend_in_use for module in learner.policy.recurrent_modules), None)
        episodes.update(batch)
        collected = _collected(collector, request)
        metrics = merged(metrics, report.iteration(config.frames_per_batch), episodes.metrics(), collected)
        for warning in diagnosis.take(metrics):
            logger.warning("After %d frames: %s", report.frames, warning)
        yield metrics


def follow(config: TrainConfig, frames: int, request: StopRequest) -> None:
    """Takes part in the run that rank 0 trains, as another rank: collects and learns, and hands in its state.

    Args:
        config: the run's.
        frames: of the run so far.
        request: passed on to rank 0, which ends the run after the iteration.
    """
    share, report = share_of(config, world()), Report(started=time.time(), frames=frames)
    set_process_state(share)
    policy = make_policy_for(share)
    learner, episodes, diagnosis = make_learner(share, policy), EpisodeStatistics(), make_diagnosis(config, policy)
    seed_process(seed_of_rank(config.seed, frames, world().rank))
    restarts = Restarts(config.collector.on_fault)
    with ExitStack() as stack:
        collector = make_collector(share, policy, frames, restarts)
        stack.push(lambda error, *_: collector.shutdown(raise_on_error=error is None))
        parts = checkpoint.components(learner, collector_state=collector)
        ranks.begin(parts)
        restarts.count = 0
        stack.enter_context(request.held())
        stack.enter_context(start_up_spared())
        learnt = iterations(config, Path(), learner, episodes, diagnosis, collector, report, request)
        while (command := world().broadcast()) != _END:
            if command == _SAVE:
                ranks.own_states(parts)
            else:
                next(learnt)


def _collected(collector: RolloutCollector, request: StopRequest) -> dict[str, float]:
    """The metrics of all ranks' collection. A signal that one of them received is passed on to rank 0."""
    if world().is_orphaned:
        logger.error("torchrun has ended; so does the run, with a checkpoint.")
        request.record(signal.SIGTERM)
    told = world().gather((request.number, collector.metrics()))
    for number, _ in told:
        if number is not None:
            request.record(number)
    metrics = [each for _, each in told]
    sums = {name: sum(each[name] for each in metrics) for name in metrics[0]}
    return {name: value if name == RESTARTS else value / len(metrics) for name, value in sums.items()}


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
