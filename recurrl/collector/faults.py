"""What befalls workers: how they report what they raise, and how the main process learns of what they can't report.

Shape legend: N environments, W workers.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from torch import multiprocessing

from recurrl.config import TrainConfig
from recurrl.environment_state import UnsavableError
from recurrl.errors import ConfigError, RunError

_NOTICED = b"\0"
_MOST_BYTES = 4096
_CALLS_UNTIL_NOTICED = 25

_DYING_S = 2.0
"""How long a worker whose pipe is closed may take to end, or to say why."""

_ADVICE = {
    signal.SIGKILL: "The system does so where memory runs out (dmesg tells): then give fewer env.num_envs or "
    "collector.num_workers.",
    signal.SIGBUS: "Processes end so where shared memory runs out: in a container give more of it, with docker run "
    "--ipc=host or --shm-size.",
}
_ELSEWHERE = "PYTHONFAULTHANDLER=1 shows where it was."


class RemoteTraceback(Exception):  # noqa: N818  (it is no error of its own, but where the other one came from)
    """The traceback of a worker's exception, in the worker."""


class WorkerFaultError(RunError):
    """A worker ended, or its environments raised what this process does not know; the message says which worker."""


class Reports:
    """Where workers send the exceptions that they end by."""

    def __init__(self) -> None:
        self._queue: Any = multiprocessing.get_context("spawn").SimpleQueue()

    @contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """In a worker: sends an exception to the main process, which is the one to print it, and ends this process.

        Raises:
            SystemExit: there was an exception.
        """
        try:
            yield
        except Exception as error:
            self._queue.put((worker, *_portable(error)))
            raise SystemExit(1) from error

    def first(self) -> tuple[int, Exception | str, str] | None:
        """A worker, its exception (or, where that can't be sent, what it said), and its traceback; None without one."""
        if self._queue.empty():
            return None
        worker, pickled, said, printed = self._queue.get()
        return worker, said if pickled is None else pickle.loads(pickled), printed


def _portable(error: Exception) -> tuple[bytes | None, str, str]:
    """The exception itself, if it survives being sent; what it says; and how it would be printed."""
    said, printed = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None, said, printed
    return pickled, said, printed


class Alarms:
    """Tells the main process of alarms in workers, also of those that Python there does not get to know of.

    The system's handler of a signal writes its number to a pipe at once, wherever the process is. Python's handler
    comes later, and in native code that does not return it never comes.

    Args:
        workers: W.
    """

    def __init__(self, workers: int) -> None:
        self._pipes = [multiprocessing.get_context("spawn").Pipe(duplex=False) for _ in range(workers)]
        self._silent = [0] * workers

    def __getstate__(self) -> list[Any]:
        return [writer for _, writer in self._pipes]

    def __setstate__(self, writers: list[Any]) -> None:
        self._writers = writers

    def send(self, worker: int) -> Callable[[], object]:
        """In a worker: sends its alarms from now on. Returns what to call when Python has noticed one."""
        file = self._writers[worker].fileno()
        os.set_blocking(file, False)
        signal.set_wakeup_fd(file, warn_on_full_buffer=False)
        return partial(os.write, file, _NOTICED)

    def unnoticed(self) -> int | None:
        """A worker that has not noticed an alarm for many calls of this in a row; None if there is none."""
        for worker, (reader, _) in enumerate(self._pipes):
            if reader.poll():
                alarmed = os.read(reader.fileno(), _MOST_BYTES)[-1] == signal.SIGALRM
                self._silent[worker] = 1 if alarmed else 0
            elif self._silent[worker]:
                self._silent[worker] += 1
            # Calls and not seconds: in those the processes may have been stopped.
            if self._silent[worker] > _CALLS_UNTIL_NOTICED:
                return worker
        return None


class Supervisor:
    """Knows which worker failed, and why.

    Args:
        config: the run's configuration.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.reports, self.alarms = Reports(), Alarms(config.collector.num_workers)
        self._timeout_s = config.collector.timeout_s
        self._workers = config.collector.num_workers
        self._envs = config.env.num_envs // self._workers

    def fault(self, processes: Sequence[BaseProcess], frames: int) -> Exception | None:
        """What befell the workers, as an exception with its cause; None for nothing.

        Args:
            processes: the workers.
            frames: those that each of them has handed in.
        """
        ended = next((worker for worker, process in enumerate(processes) if process.exitcode is not None), None)
        # In this order, for a worker reports before it ends.
        reported = self.reports.first()
        if reported is not None:
            return self._reported(*reported)
        if ended is not None:
            return WorkerFaultError(f"{self._name(ended)} {_end(processes[ended].exitcode or 0, frames)}")
        hung = self.alarms.unnoticed()
        if hung is not None:
            return WorkerFaultError(f"{self._name(hung)} {_hang(self._timeout_s or 0.0, frames)}")
        return None

    def fault_of_lost(self, processes: Sequence[BaseProcess], frames: int) -> Exception | None:
        """The same, after a worker could not be reached: it is given time to end."""
        ending = connection.wait([process.sentinel for process in processes], timeout=_DYING_S)
        for process in processes:
            # Its files are closed a moment before it has an exit code.
            if process.sentinel in ending:
                process.join(_DYING_S)
        return self.fault(processes, frames)

    def _reported(self, worker: int, error: Exception | str, printed: str) -> Exception:
        if isinstance(error, RunError):
            error = type(error)(f"{self._name(worker)}: {error}")
        elif not isinstance(error, ConfigError | UnsavableError):
            said = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            error = WorkerFaultError(f"{self._name(worker)} raised {said.rstrip('.')}. HYDRA_FULL_ERROR=1 shows where.")
        error.__cause__ = RemoteTraceback(f"\n{printed}")
        return error

    def _name(self, worker: int) -> str:
        first = worker * self._envs
        which = f"environment {first}" if self._envs == 1 else f"environments {first} to {first + self._envs - 1}"
        return f"Worker {worker} of {self._workers} ({which})"


def _hang(seconds: float, frames: int) -> str:
    return (
        f"hangs in native code after {frames} frames of its own: nothing came back for {seconds:g} s, the limit by "
        "collector.timeout_s. If it may take so long, give a larger one, or null for none. With "
        "collector.on_fault=restart the run goes on with new workers."
    )


def _end(exitcode: int, frames: int) -> str:
    after = f"after {frames} frames of its own"
    if exitcode >= 0:
        return f"ended with exit code {exitcode} {after}. What it printed says why."
    number = signal.Signals(-exitcode)
    return (
        f"was ended by {number.name} {after}. {_ADVICE.get(number, _ELSEWHERE)} With "
        "collector.on_fault=restart the run goes on with new workers."
    )
