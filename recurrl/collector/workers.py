"""Rollouts by workers, which share the environments evenly and act with copies of the policy.

A host runs the workers, as processes of this machine or actors of a Ray cluster. A worker runs its calls in order, so
rollouts can be queued ahead of learning.

Shape legend: N environments, T steps.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import nn
from torchrl.checkpoint import GlobalRNGState

from recurrl.collector.collector import FAILED, STALENESS, RolloutSpec
from recurrl.collector.single import SingleCollector
from recurrl.config import WorkersConfig
from recurrl.errors import ConfigError, RunError, UnsavableError, message_of
from recurrl.runtime.metrics import floats, means
from recurrl.runtime.seeds import seed_process, seeds
from recurrl.runtime.serialization import from_bytes, to_bytes

Collected = tuple[dict[NestedKey, np.ndarray[Any, Any]], dict[str, float]]
"""What a worker returns: the entries of rows ``[N, T]``, and the metrics of their collection."""

CONTINUES = "With collector.on_env_error=restart the run continues with a new one."

logger = logging.getLogger(__name__)


class WorkerError(RunError):
    """A worker ended, or its environments raised an unexpected exception; the message says which worker."""


def reported(error: Exception, printed: str) -> Exception:
    """The exception to send to the main process: ``error`` if it is recurrl's own, else a :class:`WorkerError`.

    Args:
        error: the exception that was raised in the worker.
        printed: its traceback, which becomes a note.
    """
    if not isinstance(error, ConfigError | RunError | UnsavableError):
        error = WorkerError(f"raised {type(error).__name__}: {message_of(error)}. HYDRA_FULL_ERROR=1 shows where.")
    error.add_note(printed)
    return error


class Worker:
    """Collects within a process or an actor. Results and arguments are plain values, bytes and arrays."""

    collector: SingleCollector

    def start(self, spec: RolloutSpec, seed: int) -> None:
        """Makes the environments.

        Args:
            spec: what this worker collects.
            seed: the seed of this process's random numbers.
        """
        seed_process(seed)
        self.collector = SingleCollector(spec)

    def collect(self, weights: Mapping[str, Any]) -> Collected:
        """Collects rows with these weights."""
        self.collector.policy.load_state_dict(weights)
        # As arrays, because each tensor would be sent through a file.
        arrays = {key: value.cpu().numpy() for key, value in self.collector.collect().items(True, True)}
        return arrays, floats(self.collector.metrics())

    def save(self) -> bytes:
        """The unfinished episodes, and the state of this process's random number generators."""
        # As bytes, because each tensor would be sent through a file.
        return to_bytes({**self.collector.state_dict(), "rng": GlobalRNGState().state_dict()})

    def restore(self, saved: bytes) -> None:
        """Restores what :meth:`save` returned."""
        state = from_bytes(saved)
        self.collector.load_state_dict(state)
        GlobalRNGState().load_state_dict(state["rng"])

    def close(self) -> None:
        """Closes the environments, if there are any."""
        if "collector" in vars(self):
            self.collector.shutdown(raise_on_error=False)


class WorkerHost(Protocol):
    """Runs workers, which are numbered from 0.

    Attributes:
        frames: frames that each worker has collected, for error messages.
    """

    frames: int

    def start(self, worker: int, spec: RolloutSpec, seed: int) -> None:
        """Starts a worker, which makes its environments."""

    def publish(self, policy: nn.Module, slot: int) -> Any:
        """Makes a policy's weights accessible to workers. Returns the argument of :meth:`Worker.collect` for them.

        Args:
            policy: the policy.
            slot: where to store them, from 0 to ``options.ahead``; no worker is reading it.
        """

    def call(self, worker: int, method: str, *arguments: Any) -> None:
        """Queues a call of a worker's method, after the calls already queued."""

    def receive(self, worker: int) -> Any:
        """Waits for the next result of a worker. If the worker failed, it is ended, and the result is an exception."""

    def shutdown(self) -> None:
        """Ends all workers."""


class WorkerCollector:
    """Rollouts ``[N, T]`` of several workers, with the environments and seeds of ``collector=single`` split among them.

    A rollout is collected with weights that are ``options.ahead`` updates stale; with 0, the workers wait while the
    policy learns. All results are deterministic.

    Args:
        options: the collector's options.
        spec: what to collect.
        host: runs the workers.

    Raises:
        ConfigError: a worker raised it.
        RunError: a worker raised something else or ended; no worker is left running.
    """

    def __init__(self, options: WorkersConfig, spec: RolloutSpec, host: WorkerHost) -> None:
        self._options, self._spec, self._ahead = options, spec, options.ahead
        self._workers, self._size = range(options.num_workers), spec.env.num_envs // options.num_workers
        self._running: set[int] = set()
        self._returned, self._metrics = 0, dict[str, float]()
        # Per worker: for each queued rollout, the update that its weights are from; for each received one, its rows,
        # that update and its metrics.
        self._queued: list[deque[int]] = [deque() for _ in self._workers]
        self._rows: list[deque[tuple[TensorDict, int, dict[str, float]]]] = [deque() for _ in self._workers]
        self.host = host
        try:
            self.restart(spec.seed)
        except BaseException:
            self.shutdown(raise_on_error=False)
            raise

    def restart(self, seed: int) -> None:
        """Starts the workers that are not running; the others keep their episodes and their rows.

        Args:
            seed: the seed of worker 0's first environment, from which all others derive.

        Raises:
            RunError: a new worker failed.
        """
        options, spec = self._options, self._spec
        share = replace(spec, env=replace(spec.env, num_envs=self._size), frames=spec.frames // options.num_workers)
        new = [worker for worker in self._workers if worker not in self._running]
        for worker in new:
            first = seeds(seed, worker * self._size + 1)[-1]
            self.host.start(worker, replace(share, seed=first), seed + worker)
        for worker, _ in self._results(new):
            self._running.add(worker)

    def collect(self) -> TensorDictBase:
        """The next rollout. After an error, only the rows of workers that failed are collected again."""
        weights = self.host.publish(self._spec.policy, self._returned % (self._ahead + 1))
        for worker, (queued, rows) in enumerate(zip(self._queued, self._rows, strict=True)):
            while len(queued) + len(rows) <= self._ahead:
                self.host.call(worker, "collect", weights)
                queued.append(self._returned)
        self._wait_for(1)
        parts, updates, metrics = zip(*(rows.popleft() for rows in self._rows), strict=True)
        staleness = {STALENESS: self._returned - fmean(updates)} if self._ahead else {}
        self._metrics = {**means(metrics), **staleness}
        self._returned += 1
        self.host.frames += self._spec.frames // len(self._workers)
        return torch.cat(parts).to(self._spec.policy.device)

    def _wait_for(self, count: int) -> None:
        """Waits until each worker has delivered ``count`` rollouts, or all that are queued."""
        while missing := [each for each in self._workers if self._queued[each] and len(self._rows[each]) < count]:
            for worker, (arrays, metrics) in self._results(missing):
                rows = self._as_rows({key: torch.tensor(array) for key, array in arrays.items()})
                self._rows[worker].append((rows, self._queued[worker].popleft(), metrics))

    def _as_rows(self, entries: Mapping[NestedKey, torch.Tensor]) -> TensorDict:
        return TensorDict(dict(entries), [self._size, self._spec.frames // self._spec.env.num_envs])

    def _results(self, workers: Collection[int]) -> Iterator[tuple[int, Any]]:
        """The next result of each worker that succeeded; then raises the error of the first one that failed.

        To be read to its end.
        """
        errors = []
        for worker in workers:
            result = self.host.receive(worker)
            if isinstance(result, Exception):
                self._running.discard(worker)
                self._queued[worker].clear()
                errors.append(self._named(result, worker))
            else:
                yield worker, result
        for other in errors[1:]:
            logger.warning("%s", other)
        if errors:
            if self._options.on_env_error != "restart":
                self.shutdown(raise_on_error=False)
            raise errors[0]

    def _named(self, error: Exception, worker: int) -> Exception:
        """The exception, with the worker and its environments before the message if it is a :class:`RunError`."""
        first, last = worker * self._size, (worker + 1) * self._size - 1
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        if isinstance(error, RunError):
            colon = "" if isinstance(error, WorkerError) else ":"
            error.args = (f"Worker {worker} of {len(self._workers)} ({which}){colon} {error}",)
        return error

    def metrics(self) -> dict[str, float]:
        """What environments logged during the last rollout, averaged over the workers that have it.

        If workers collect ahead of learning, also the mean staleness of the rollout, in updates.
        """
        return self._metrics

    def state_dict(self) -> dict[str, Any]:
        """The state of each worker, and the rows collected ahead of learning, with their staleness and their metrics.

        Raises:
            RunError: a worker failed.
        """
        if len(self._running) < len(self._workers):
            return {"unsavable_reason": FAILED}
        self._wait_for(self._ahead + 1)
        for worker in self._workers:
            self.host.call(worker, "save")
        states = [from_bytes(saved) for _, saved in self._results(self._workers)]
        reason = next(filter(None, (each["unsavable_reason"] for each in states)), None)
        ahead = [
            [(dict(part.items(True, True)), self._returned - update, metrics) for part, update, metrics in rows]
            for rows in self._rows
        ]
        return {"unsavable_reason": reason, "workers": states, "ahead": ahead}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` returned. Episodes that could not be saved are restarted.

        Raises:
            UnsavableError: the environments are constructed differently from the saved ones.
            RunError: a worker failed.
        """
        self._wait_for(self._ahead + 1)
        if "workers" not in state:  # of a collector that had failed
            return
        for worker, each in enumerate(state["workers"]):
            self.host.call(worker, "restore", to_bytes(each))
        dict(self._results(self._workers))
        for rows, parts in zip(self._rows, state["ahead"], strict=True):
            rows.clear()
            rows.extend((self._as_rows(entries), self._returned - age, metrics) for entries, age, metrics in parts)

    def shutdown(self, *, raise_on_error: bool = True) -> None:
        """Ends the workers."""
        self._running.clear()
        self.host.shutdown()
