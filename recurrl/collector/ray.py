"""Actors of a Ray cluster, on any of its machines, that collect in parallel, in turns with learning or during it.

Shape legend: N environments, T steps, W workers.
"""

import logging
import signal
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from math import ceil
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey

from recurrl.collector import collector_state, single
from recurrl.collector.faults import WorkerFaultError, name_of, reported
from recurrl.collector.rollouts import Rollouts
from recurrl.config.collector import RayConfig
from recurrl.errors import ConfigError
from recurrl.runtime.in_bytes import read, written
from recurrl.runtime.ranks import world
from recurrl.runtime.seeds import seed_process, seeds
from recurrl.runtime.signals import SIGNALS
from recurrl.runtime.time_limit import time_limit

_CLOSING_S = 5.0
"""Time that environments get to close."""
_START = " Start a cluster with ray start --head, or leave collector.address out to use this machine alone."

_NOT_STARTED = (RayError, OSError, RuntimeError, ValueError)
"""What Ray raises where it cannot start or connect."""

Arrays = dict[NestedKey, np.ndarray[Any, Any]]
logger = logging.getLogger(__name__)


class Worker:
    """The collector within an actor."""

    def start(self, path: list[str], pickled: bytes, seed: int) -> None:
        """Makes the environments.

        Args:
            path: where the main process finds modules, which may be missing here.
            pickled: the options and this worker's share of the rollouts.
            seed: for the actor's random numbers.
        """
        sys.path += [each for each in path if each not in sys.path]
        self._options, rollouts = cloudpickle.loads(pickled)
        torch.set_num_threads(max(1, int(self._options.cpus_per_worker)))
        rollouts.policy.to("cuda" if self._options.gpus_per_worker else "cpu")
        self._policy = rollouts.policy
        seed_process(seed)
        with time_limit(self._options.timeout_s):
            self._collector = single.make(self._options, rollouts)

    def rollout(self, weights: bytes) -> Arrays:
        """The entries of the rows ``[N, T]``, collected with these weights."""
        self._policy.load_state_dict(read(weights))
        with time_limit(self._options.timeout_s):
            rows = self._collector.rollout()
        # As arrays: Ray reads them from its shared memory without a copy, unlike tensors.
        return {key: value.cpu().numpy() for key, value in rows.items(True, True)}

    def saved(self) -> bytes:
        """This worker's state, including its random numbers."""
        with time_limit(self._options.timeout_s):
            return collector_state.saved(self._collector)

    def restore(self, saved: bytes) -> None:
        """Restores it."""
        with time_limit(self._options.timeout_s):
            collector_state.restore(self._collector, saved)

    def close(self) -> None:
        """Closes the environments."""
        self._collector.shutdown(raise_on_error=False)


class Call(NamedTuple):
    """A rollout that an actor was asked for.

    Attributes:
        rows: Ray's reference to what it returns.
        update: the number of updates in its weights, counted by batches.
    """

    rows: Any
    update: int


class RayCollector:
    """Rollouts ``[N, T]``, collected by actors that share the environments evenly.

    They have the newest weights, or those of ``collector.ahead`` updates before.

    Environments have the same seeds as in a single process, and actors the random numbers of the workers of
    ``collector=multi_sync``.

    Args:
        options: as configured.
        rollouts: what to collect.

    Raises:
        ConfigError: there is no such cluster, or an actor raised it.
        RunError: an actor raised something else or was lost; none is left.
    """

    def __init__(self, options: RayConfig, rollouts: Rollouts) -> None:
        self._options, self._rollouts = options, rollouts
        self._rows: dict[int, Arrays] = {}
        self._updates: dict[int, int] = {}
        self._actors: dict[int, Any] = {}
        self._calls: defaultdict[int, deque[Call]] = defaultdict(deque)
        self._batches, self._staleness = 0, 0.0
        self._connection = ExitStack()
        try:
            self._connection.enter_context(_connected(options))
            self._start(rollouts.seed)
        except BaseException:
            self.shutdown()
            raise

    def __iter__(self) -> Iterator[TensorDictBase]:
        """An endless iterator. After a fault, a new one collects only the rows that the last batch lacks."""
        while True:
            # Each machine gets them once, whatever the number of its actors.
            weights = ray.put(written(self._rollouts.policy.state_dict()))
            for worker, actor in self._actors.items():
                calls = self._calls[worker]
                while len(calls) + (worker in self._rows) <= self._options.ahead:
                    calls.append(Call(actor.rollout.remote(weights), self._batches))
            taken = {worker: calls.popleft() for worker, calls in self._calls.items() if worker not in self._rows}
            # With those of rows that were kept through a fault, which are older than the ones collected again.
            self._updates |= {worker: call.update for worker, call in taken.items()}
            self._staleness = self._batches - fmean(self._updates.values())
            self._wait({worker: call.rows for worker, call in taken.items()}, self._rows)
            self._batches += 1
            yield self._batch()

    def _batch(self) -> TensorDictBase:
        """The rows of all workers, in their order, which are forgotten here: until then they fill the object store."""
        rows = [self._rows.pop(worker) for worker in range(self._options.num_workers)]
        num_envs = self._rollouts.env.num_envs
        return TensorDict(_tensors(rows), [num_envs, self._rollouts.frames // num_envs]).to(
            self._rollouts.policy.device
        )

    def replace_failed(self, restarts: int) -> None:
        """Replaces the actors that failed; the others keep their episodes, and their rows of the unfinished batch.

        Args:
            restarts: of the run so far, which gives the new environments unused seeds.

        Raises:
            RunError: a new actor failed, or found no room.
        """
        unused = restarts * world().size * self._rollouts.env.num_envs
        self._start(seeds(self._rollouts.seed, unused + 1)[-1])

    def _start(self, seed: int) -> None:
        """Starts the actors that there are not, with the seeds of a chain that begins with ``seed``."""
        options, rollouts = self._options, self._rollouts
        count = rollouts.env.num_envs // options.num_workers
        share = replace(
            rollouts,
            env=replace(rollouts.env, num_envs=count),
            policy=deepcopy(rollouts.policy).cpu(),
            frames=rollouts.frames // options.num_workers,
        )
        resources = {"num_cpus": options.cpus_per_worker, "num_gpus": options.gpus_per_worker}
        started = {}
        for worker, first in enumerate(islice(seeds(seed, rollouts.env.num_envs), 0, None, count)):
            if worker not in self._actors:
                self._actors[worker] = ray.remote(**resources, scheduling_strategy="SPREAD")(Worker).remote()
                pickled = cloudpickle.dumps((options, replace(share, seed=first)))
                started[worker] = self._actors[worker].start.remote(sys.path, pickled, seed + worker)
        self._wait(started, {}, options.start_timeout_s)

    def _wait(self, calls: Mapping[int, Any], results: dict[int, Any], timeout_s: float | None = None) -> None:
        """Adds the results of calls. Actors whose calls fail are killed; only then, the first fault is raised."""
        waiting = {call: worker for worker, call in calls.items()}
        faults: list[Exception] = []
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=timeout_s)
            for call in ready or list(waiting):
                worker = waiting.pop(call)
                try:
                    results[worker] = ray.get(call, timeout=None if ready else 0)
                except RayError as error:
                    faults.append(self._fault(worker, error))
                    ray.kill(self._actors.pop(worker))
                    self._calls.pop(worker, None)
        for other in faults[1:]:
            logger.warning("%s", other)
        if faults:
            raise faults[0] from faults[0].__cause__

    def _fault(self, worker: int, error: RayError) -> Exception:
        options, num_envs = self._options, self._rollouts.env.num_envs
        name = name_of(worker, options.num_workers, num_envs)
        if isinstance(error, RayTaskError):
            return reported(name, error.cause, str(error))
        if isinstance(error, GetTimeoutError):
            return WorkerFaultError(f"{name} {_no_room(options)}")
        frames = self._batches * self._rollouts.frames // options.num_workers
        # Ray's own advice is long and about its commands.
        reason = " ".join(str(error).split()).partition(" Some common causes")[0].rstrip(".")
        return WorkerFaultError(
            f"{name} was lost after {frames} of its frames. Ray says: {reason}. With collector.on_fault=restart the "
            "run continues with a new one."
        )

    def metrics(self) -> dict[str, float]:
        """With ``collector.ahead``, the mean number of updates since the weights of the last rollout."""
        return {"collect/staleness": self._staleness} if self._options.ahead else {}

    def state_dict(self) -> dict[str, Any]:
        """The state of each worker, as with ``collector=multi_sync``, and the rows that are ahead of it.

        Raises:
            RunError: a worker failed.
        """
        saved: dict[int, bytes] = {}
        self._wait({worker: actor.saved.remote() for worker, actor in self._actors.items()}, saved)
        workers = range(self._options.num_workers)
        state = collector_state.of_workers([saved[worker] for worker in workers])
        if self._options.ahead:
            state["ahead"] = []
            for calls in zip(*(self._calls[worker] for worker in workers), strict=True):
                rows: dict[int, Arrays] = {}
                self._wait({worker: call.rows for worker, call in enumerate(calls)}, rows)
                ages = [self._batches - call.update for call in calls]
                state["ahead"].append([(_tensors([rows[worker]]), age) for worker, age in enumerate(ages)])
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores it. Episodes that could not be saved are restarted, and the log says why.

        Raises:
            UnsavableError: the environments are constructed differently from the saved ones.
            RunError: a worker failed.
        """
        saved = collector_state.to_workers(state)
        self._wait({worker: self._actors[worker].restore.remote(each) for worker, each in enumerate(saved)}, {})
        self._calls.clear()
        for of_workers in state.get("ahead", ()):
            for worker, (rows, age) in enumerate(of_workers):
                arrays = {key: value.numpy() for key, value in rows.items()}
                self._calls[worker].append(Call(ray.put(arrays), self._batches - age))

    def shutdown(self, *, raise_on_error: bool = True) -> None:
        """Ends the actors, and the cluster if it was started here."""
        actors, self._actors = list(self._actors.values()), {}
        self._rows.clear()
        self._calls.clear()
        if actors:
            ray.wait([actor.close.remote() for actor in actors], num_returns=len(actors), timeout=_CLOSING_S)
        for actor in actors:
            ray.kill(actor)
        self._connection.close()


@contextmanager
def _connected(options: RayConfig) -> Iterator[None]:
    """Connected to the cluster, or to one of this machine alone, which ends with the block.

    Raises:
        ConfigError: there is no such cluster.
    """
    if ray.is_initialized():  # by the program that called recurrl.train
        yield
        return
    with ExitStack() as stack:
        if options.address is None:
            # Of a short path, because the names of sockets in it have at most 107 characters.
            folder = stack.enter_context(TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True))
            arguments: dict[str, Any] = {
                "address": "local",  # also where RAY_ADDRESS is set
                "num_cpus": max(1, ceil(options.num_workers * options.cpus_per_worker)),
                "object_store_memory": options.object_store_mb * 2**20,
                "include_dashboard": False,
                "_temp_dir": folder,
            }
        else:
            arguments = {"address": options.address}
        stack.callback(ray.shutdown)
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            ray.init(**arguments, logging_level=logging.ERROR)
        except Exception as error:
            # Ray raises Exception itself, of no subclass, for a node that does not start in time.
            if not (isinstance(error, _NOT_STARTED) or type(error) is Exception):
                raise
            advice = "" if options.address is None else _START
            raise ConfigError(
                f"collector=ray cannot connect to collector.address={options.address or 'null'}: "
                f"{type(error).__name__}: {error}{advice}"
            ) from error
        # ray.init replaces those of the signals that end a run.
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
        yield


def _tensors(parts: list[Arrays]) -> dict[NestedKey, torch.Tensor]:
    """The entries of all parts, joined."""
    return {key: torch.from_numpy(np.concatenate([part[key] for part in parts])) for key in parts[0]}


def _no_room(options: RayConfig) -> str:
    return (
        f"did not start within collector.start_timeout_s={options.start_timeout_s:g} s. It needs "
        f"{options.cpus_per_worker:g} CPU cores and {options.gpus_per_worker:g} GPUs of one machine; the cluster has "
        f"{_described(ray.cluster_resources())}, of which {_described(ray.available_resources())} are free. Give a "
        "smaller collector.num_workers, collector.cpus_per_worker or collector.gpus_per_worker, or add machines; or a "
        "larger limit, if it is the environments that take long."
    )


def _described(resources: Mapping[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPU cores and {resources.get('GPU', 0):g} GPUs"


make = RayCollector
