"""The training loop: collect a rollout, update the policy, run the callbacks."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from recurrl.algorithms.algorithm import Algorithm
from recurrl.callbacks import Callbacks
from recurrl.collector.collector import Collector
from recurrl.collector.restarts import Restarts
from recurrl.config import TrainConfig
from recurrl.errors import NonFiniteError, RunError
from recurrl.policy import Policy
from recurrl.runtime.metrics import merged
from recurrl.runtime.ranks import world
from recurrl.runtime.run_summary import RunSummary
from recurrl.runtime.signals import StopRequest

logger = logging.getLogger(__name__)
_STOP_NOTICE = (
    "finishing and saving the current iteration; an evaluation stops and is repeated on resume. A second signal ends "
    "the run immediately. To resume: {}"
)


@dataclass(eq=False)
class Trainer:
    """Trains a policy until all frames are seen or a stop is requested. Every rank of a run executes the same program.

    Attributes:
        config: the whole run's configuration; a rank collects and learns its share of it.
        run_dir: the run's directory, in which rank 0 writes.
        algorithm: updates the policy from a rollout.
        collector: collects rollouts.
        restarts: counts restarts of environments after errors.
        callbacks: run around each iteration, in their order.
        summary: the run's summary, which also counts its frames.
        request: set by signals; ends the run after the current iteration, with a checkpoint.
        metrics: the last iteration's metrics. On resume they come from the checkpoint if its evaluation was
            interrupted; :meth:`fit` then first repeats the callbacks of that iteration.
        is_interrupted: true if a signal stopped the last iteration's evaluation. A resumed run repeats its callbacks.
        checkpoint: the last iteration's checkpoint, until it is complete; None if there is none.
        stopped: true if a callback stopped the run, which is then saved and evaluated as if it had finished.
    """

    config: TrainConfig
    run_dir: Path
    algorithm: Algorithm
    collector: Collector
    restarts: Restarts
    callbacks: Callbacks
    summary: RunSummary
    request: StopRequest
    metrics: dict[str, float] = field(default_factory=dict)
    is_interrupted: bool = False
    checkpoint: Path | None = None
    stopped: bool = False

    def fit(self, on_accepted: Callable[[], None] = lambda: None) -> None:
        """Trains. Collective: all ranks call it.

        Args:
            on_accepted: called before the first iteration, once the checkpoint that the run continues from is loaded.

        Raises:
            ConfigError: the environment or the checkpoint cannot be used as requested.
            Interrupted: a signal ended the run.
            RunError: an environment, a rank or the update failed.
        """
        with self._running():
            self.callbacks.on_start(self)
            self.summary.has_begun = True
            on_accepted()
            self.summary.startup_time_s = time.monotonic() - self.summary.started
            if self.metrics:
                self.callbacks.on_iteration(self, self.metrics)
            while not self.agree_on_end():
                with self.summary.timing("collect"), self._ending_on_failure():
                    rollout = self.collector.collect()
                seen = self.callbacks.on_rollout(self, rollout)
                with self.summary.timing("learn"):
                    learned = self.algorithm.update(rollout, self.progress)
                self.summary.backend = self.policy.backend_in_use
                times = self.summary.add_iteration(self.config.frames_per_batch, self.algorithm.compile_time_s)
                self.metrics = merged(learned, times, world().averaged(self.collector.metrics()), seen)
                self.callbacks.on_iteration(self, self.metrics)
            self.callbacks.on_end(self)
        self.summary.status = "stopped" if self.stopped else "completed"

    @property
    def policy(self) -> Policy:
        """The policy that is trained."""
        return self.algorithm.policy

    @property
    def frames(self) -> int:
        """Environment steps of the run so far, summed over environments and ranks."""
        return self.summary.frames

    @property
    def progress(self) -> float:
        """The fraction of the schedules completed before this iteration, from 0 to below 1.

        Schedules run over ``schedule_frames``, or over ``total_frames`` if that is not set. From the last iteration
        that lies wholly within these frames on, the fraction is constant. It stays below 1 so that a run that continues
        longer still learns, where the learning rate would be zero at the end.
        """
        config = self.config
        over = config.schedule_frames or config.total_frames
        last = (over // config.frames_per_batch - 1) * config.frames_per_batch
        return min(self.frames, last) / over

    @property
    def is_last(self) -> bool:
        """True if a callback has stopped the run, or another iteration would exceed ``total_frames``."""
        return self.stopped or self.frames + self.config.frames_per_batch > self.config.total_frames

    def is_due(self, every_frames: int | None) -> bool:
        """True if the last iteration reached a multiple of ``every_frames``, or is the run's last.

        If ``every_frames`` is None, only the last iteration is due.
        """
        if self.is_last or every_frames is None:
            return self.is_last
        return self.frames // every_frames > (self.frames - self.config.frames_per_batch) // every_frames

    def stop(self) -> None:
        """Ends the run after this iteration, saved and evaluated as if it had finished. Called on rank 0."""
        self.stopped |= not self.is_last

    def agree_on_end(self) -> bool:
        """True if no iteration follows. Collective: a stop requested on one rank stops all."""
        if world().is_orphaned:
            logger.error("torchrun has ended. The run writes a checkpoint and ends, too.")
            self.request.record(signal.SIGTERM)
        number, stopped = world().all_gather(torch.tensor([self.request.number, self.stopped])).amax(0).tolist()
        if number:
            self.request.record(number)
        self.stopped = bool(stopped)
        return self.is_last or number > 0

    @contextmanager
    def _ending_on_failure(self) -> Iterator[None]:
        """Calls ``on_end`` if environments or workers fail, so that the run is saved.

        It does so only without other ranks, which would have to take part.
        """
        try:
            yield
        except RunError as error:
            if world().size == 1 and not isinstance(error, NonFiniteError):  # such a policy is worth nothing
                self.callbacks.on_end(self)
            raise

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Defers signals, and closes callbacks and collector however the run ends."""
        with ExitStack() as stack:
            # Failed environments may also fail to close, which must not hide the first error.
            stack.push(lambda error, *_: self.callbacks.close(failed=error is not None))
            stack.push(lambda error, *_: self.collector.shutdown(raise_on_error=error is None))
            notice = _STOP_NOTICE.format(self.summary.resume_command) if world().rank == 0 else ""
            stack.enter_context(self.request.deferred(notice))
            yield
