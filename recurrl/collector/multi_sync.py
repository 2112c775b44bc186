"""Workers in processes of this machine. They collect alternating with learning, or ahead of it.

Shape legend: W workers.
"""

import signal
import time
import traceback
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pickle import PicklingError
from typing import Any

import cloudpickle
import torch
from torch import Tensor, multiprocessing, nn

from recurrl.collector.collector import RolloutSpec
from recurrl.collector.workers import CONTINUES, Collected, Worker, WorkerCollector, WorkerError, reported
from recurrl.config import WorkersConfig
from recurrl.errors import ConfigError
from recurrl.policy import Policy
from recurrl.runtime.signals import ignore_signals
from recurrl.runtime.time_limit import time_limit

_POLL_S = 0.2
_POLLS_UNTIL_HUNG = 25
"""A worker hangs if it has not raised an error itself within this many polls after a call's deadline. They are counted
rather than timed, because all processes may have been suspended meanwhile."""
_ENDING_S = 5.0
"""Time that environments get to close, and a process whose pipe is closed to end."""
_ADVICE = {
    signal.SIGKILL: "The system may have run out of memory (see dmesg): if so, set a smaller env.num_envs or "
    "collector.num_workers.",
    signal.SIGBUS: "Shared memory may have run out: in a container, allow more with docker run --ipc=host or "
    "--shm-size.",
}

Weights = dict[str, Tensor]


class ProcessWorker(Worker):
    """Collects within a process.

    Args:
        weights: versions of the weights, in shared memory.
    """

    def __init__(self, weights: list[Weights]) -> None:
        self._weights = weights

    def collect(self, weights: Any) -> Collected:
        """Collects rows with one version of the weights, by its index."""
        return super().collect(self._weights[weights])


class ProcessHost:
    """Runs workers in processes of this machine, one pipe each.

    The main process handles the signals that end a run: the workers ignore them, so that the iteration can finish. They
    end with the main process, whatever ends it.

    Args:
        options: the collector's options.
        policy: the policy to collect with.
    """

    def __init__(self, options: WorkersConfig, policy: Policy) -> None:
        self._options, self.frames = options, 0
        self._context = multiprocessing.get_context("spawn")
        self.processes: dict[int, BaseProcess] = {}
        self._pipes: dict[int, Any] = {}
        self._policy = deepcopy(policy).cpu()
        versions = range(options.ahead + 1)
        self._weights: list[Weights] = [deepcopy(self._policy).share_memory().state_dict() for _ in versions]
        self._due_W = torch.full((options.num_workers,), torch.inf, dtype=torch.float64).share_memory_()

    def start(self, worker: int, spec: RolloutSpec, seed: int) -> None:
        """Starts a process, without waiting until it is ready."""
        mine, its = self._context.Pipe()
        due = self._due_W[worker : worker + 1].fill_(torch.inf)
        process = self._context.Process(
            target=_work, args=(its, due, self._options.timeout_s, self._weights), daemon=True
        )
        process.start()
        its.close()
        self.processes[worker], self._pipes[worker] = process, mine
        try:
            self.call(worker, "start", replace(spec, policy=self._policy), seed)
        except (TypeError, PicklingError) as error:
            raise ConfigError(
                f"With collector={self._options.name} environment and policy must be picklable (got "
                f"{type(error).__name__}: {error}). Choose collector=single, or remove what cannot be pickled."
            ) from error

    def publish(self, policy: nn.Module, slot: int) -> int:
        """Writes the weights into a slot that no worker reads."""
        for name, value in policy.state_dict().items():
            self._weights[slot][name].copy_(value)
        return slot

    def call(self, worker: int, method: str, *arguments: Any) -> None:
        """Queues a call in the worker's pipe."""
        # By cloudpickle, which also pickles lambdas and the classes of a notebook.
        pickled = cloudpickle.dumps((method, arguments))
        # A process that has ended is noticed by `receive`.
        with suppress(OSError):
            self._pipes[worker].send_bytes(pickled)

    def receive(self, worker: int) -> Any:
        """Waits for a result, and detects that the worker has ended or hangs."""
        result = self._result(worker) if self._responds(worker) else self._hung()
        if isinstance(result, Exception):
            self._end(worker)
        return result

    def _responds(self, worker: int) -> bool:
        """Waits until a worker has sent a result, or has ended. False if it hangs."""
        polls_late = 0
        while not connection.wait([self._pipes[worker], self.processes[worker].sentinel], _POLL_S):
            polls_late = polls_late + 1 if self._due_W[worker] < time.monotonic() else 0
            if polls_late > _POLLS_UNTIL_HUNG:
                return False
        return True

    def _hung(self) -> WorkerError:
        return WorkerError(
            f"hangs in native code after collecting {self.frames} frames: no response within "
            f"collector.timeout_s={self._options.timeout_s:g} s. If its steps may take longer, increase "
            f"the limit, or set it to null. {CONTINUES}"
        )

    def _result(self, worker: int) -> Any:
        try:
            return self._pipes[worker].recv()
        except (EOFError, OSError):
            process, after = self.processes[worker], f"after collecting {self.frames} frames"
            process.join(_ENDING_S)
            code = process.exitcode or 0
            if code >= 0:
                return WorkerError(f"exited with code {code} {after}. Its output says why.")
            number = signal.Signals(-code)
            advice = _ADVICE.get(number, "PYTHONFAULTHANDLER=1 shows where.")
            return WorkerError(f"was killed by {number.name} {after}. {advice} {CONTINUES}")

    def _end(self, worker: int) -> None:
        process, pipe = self.processes.pop(worker), self._pipes.pop(worker)
        process.kill()
        process.join()
        pipe.close()

    def shutdown(self) -> None:
        """Ends the processes, which get some time to close their environments."""
        for pipe in self._pipes.values():
            pipe.close()
        deadline = time.monotonic() + _ENDING_S
        for process in self.processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
        for worker in list(self.processes):
            self._end(worker)


def _work(pipe: Any, due: Tensor, timeout_s: float | None, weights: list[Weights]) -> None:
    """Serves calls until the pipe closes."""
    ignore_signals()
    torch.set_num_threads(1)
    worker = ProcessWorker(weights)
    with time_limit(timeout_s, due.numpy()):
        with suppress(EOFError, OSError):
            while True:
                call = pipe.recv_bytes()
                try:
                    method, arguments = cloudpickle.loads(call)
                    result = getattr(worker, method)(*arguments)
                except Exception as error:
                    result = reported(error, "".join(traceback.format_exception(error)))
                pipe.send(result)
        worker.close()


def make(options: WorkersConfig, spec: RolloutSpec) -> WorkerCollector:
    """The collector of worker processes."""
    return WorkerCollector(options, spec, ProcessHost(options, spec.policy))
