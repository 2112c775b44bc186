"""Workers as actors on any machine of a Ray cluster. They collect alternating with learning, or ahead of it."""

import logging
import signal
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from math import ceil
from tempfile import TemporaryDirectory
from typing import Any

import ray
import torch
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from torch import nn

from recurrl.collector.collector import RolloutSpec
from recurrl.collector.workers import CONTINUES, Worker, WorkerCollector, WorkerError, reported
from recurrl.config.collector import RayConfig
from recurrl.errors import ConfigError
from recurrl.runtime.signals import SIGNALS
from recurrl.runtime.time_limit import time_limit

START_TIMEOUT_S = 300.0
"""Time that an actor gets to start and make its environments."""
_CLOSING_S = 5.0
"""Time that environments get to close."""
_OBJECT_STORE_BYTES = 2**29
"""Size of the object store of a cluster that the run starts."""
_START = " Start a cluster with ray start --head, or leave collector.address out to use this machine alone."


class ActorWorker(Worker):
    """Collects within an actor."""

    def begin(self, path: list[str], pickled: bytes, seed: int) -> None:
        """Makes the environments, which have the configured time limit from then on.

        Args:
            path: where the main process looks for modules; directories that are not on this machine's path are added.
            pickled: the collector's options and this worker's :class:`RolloutSpec`.
            seed: the seed of the actor's random numbers.
        """
        sys.path += [each for each in path if each not in sys.path]
        options, spec = cloudpickle.loads(pickled)
        torch.set_num_threads(max(1, int(options.cpus_per_worker)))
        spec.policy.to("cuda" if options.gpus_per_worker else "cpu")
        self._limit = ExitStack()
        self._limit.enter_context(time_limit(options.timeout_s))
        self.start(spec, seed)


class RayHost:
    """Runs workers as actors.

    Args:
        options: the collector's options.

    Raises:
        ConfigError: there is no such cluster.
    """

    def __init__(self, options: RayConfig) -> None:
        self._options, self.frames = options, 0
        self._actors: dict[int, Any] = {}
        self._calls: defaultdict[int, deque[Any]] = defaultdict(deque)
        self._start_by: dict[int, float] = {}
        self._connection = _connect(options)

    def start(self, worker: int, spec: RolloutSpec, seed: int) -> None:
        """Starts an actor, if the cluster has resources for it."""
        resources = {"num_cpus": self._options.cpus_per_worker, "num_gpus": self._options.gpus_per_worker}
        self._actors[worker] = ray.remote(**resources, scheduling_strategy="SPREAD")(ActorWorker).remote()
        pickled = cloudpickle.dumps((self._options, replace(spec, policy=deepcopy(spec.policy).cpu())))
        self._calls[worker].append(self._actors[worker].begin.remote(sys.path, pickled, seed))
        self._start_by[worker] = time.monotonic() + START_TIMEOUT_S

    def publish(self, policy: nn.Module, slot: int) -> Any:
        """Ray's reference to the weights: each machine gets them once, whatever the number of its actors."""
        return ray.put({name: value.cpu() for name, value in policy.state_dict().items()})

    def call(self, worker: int, method: str, *arguments: Any) -> None:
        """Queues a call of the actor's method."""
        self._calls[worker].append(getattr(self._actors[worker], method).remote(*arguments))

    def receive(self, worker: int) -> Any:
        """Waits for a result. Only an actor's first one has a deadline."""
        deadline = self._start_by.pop(worker, None)
        timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return ray.get(self._calls[worker].popleft(), timeout=timeout_s)
        except RayError as error:
            failure = self._failure(error)
            self._end(worker)
            return failure

    def _failure(self, error: RayError) -> Exception:
        if isinstance(error, RayTaskError):
            return reported(error.cause, str(error))
        if isinstance(error, GetTimeoutError):
            needed = {"CPU": self._options.cpus_per_worker, "GPU": self._options.gpus_per_worker}
            return WorkerError(
                f"did not start within {START_TIMEOUT_S} s. It needs {_described(needed)} of one machine; the cluster "
                f"has {_described(ray.cluster_resources())}, of which {_described(ray.available_resources())} are "
                "free. Set a smaller collector.num_workers, collector.cpus_per_worker or collector.gpus_per_worker, or "
                "add machines."
            )
        # Cuts off Ray's own advice, which is long and about Ray's commands.
        reason = " ".join(str(error).split()).partition(" Some common causes")[0].rstrip(".")
        return WorkerError(f"was lost after collecting {self.frames} frames. Ray reported: {reason}. {CONTINUES}")

    def _end(self, worker: int) -> None:
        ray.kill(self._actors.pop(worker))
        self._calls.pop(worker, None)

    def shutdown(self) -> None:
        """Ends the actors, and the cluster if it was started here."""
        if self._actors:
            closing = [actor.close.remote() for actor in self._actors.values()]
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSING_S)
        for worker in list(self._actors):
            self._end(worker)
        self._connection.close()


def _connect(options: RayConfig) -> ExitStack:
    """Connects to the cluster, or starts one on this machine alone, which ends when the returned stack is closed.

    Raises:
        ConfigError: there is no such cluster.
    """
    with ExitStack() as stack:
        if ray.is_initialized():  # by the program that called recurrl.train
            return stack
        if options.address is None:
            # A short path, because the paths of the sockets in it have at most 107 characters.
            folder = stack.enter_context(TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True))
            arguments: dict[str, Any] = {
                "address": "local",  # even if RAY_ADDRESS is set
                "num_cpus": max(1, ceil(options.num_workers * options.cpus_per_worker)),
                "object_store_memory": _OBJECT_STORE_BYTES,
                "include_dashboard": False,
                "_temp_dir": folder,
            }
        else:
            arguments = {"address": options.address}
        stack.callback(ray.shutdown)
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            ray.init(**arguments, logging_level=logging.ERROR)
        except (TypeError, AttributeError, LookupError):
            raise  # an error in code, not a missing cluster
        except Exception as error:  # Ray raises Exception itself for a node that does not start in time
            advice = "" if options.address is None else _START
            raise ConfigError(
                f"collector=ray cannot connect to collector.address={options.address or 'null'}: "
                f"{type(error).__name__}: {error}{advice}"
            ) from error
        # ray.init replaces the handlers of the signals that end a run.
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return stack.pop_all()


def _described(resources: Mapping[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPU cores and {resources.get('GPU', 0):g} GPUs"


def make(options: RayConfig, spec: RolloutSpec) -> WorkerCollector:
    """The collector of a Ray cluster."""
    return WorkerCollector(options, spec, RayHost(options))
