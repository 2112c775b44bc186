"""Faults of workers: exceptions that they report, and deaths and hangs that the main process detects.

Shape legend: N environments, W workers.
"""

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from torch import multiprocessing

from recurrl.config import WorkersConfig
from recurrl.envs.saved_state import UnsavableError
from recurrl.errors import ConfigError, RunError
from recurrl.runtime.time_limit import time_limit

_NOTICED = b"\0"
_MOST_BYTES = 4096
_CALLS_UNTIL_NOTICED = 25

_DYING_S = 2.0
"""Time limit for a worker whose pipe is closed to end or to report why."""

_ADVICE = {
    signal.SIGKILL: "The system may have run out of memory (see dmesg): if so, give a smaller env.num_envs or "
    "collector.num_workers.",
    signal.SIGBUS: "Shared memory may have run out: in a container, give more with docker run --ipc=host or "
    "--shm-size.",
}
_CONTINUES = "With collector.on_fault=restart the run continues with new workers."
_ELSEWHERE = "PYTHONFAULTHANDLER=1 shows where."


class RemoteTraceback(Exception):  # noqa: N818  (not an error itself, but the origin of another one)
    """The traceback of an exception within its worker."""


class WorkerFaultError(RunError):
    """A worker ended, or its environments raised an unexpected exception; the message says which worker."""


def _portable(error: Exception) -> tuple[bytes | None, str, str]:
    """The pickled exception, if it can be pickled; its message; and its printed traceback."""
    said, printed = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None, said, printed
    return pickled, said, printed


class Alarms:
    """Tells the main process of alarms in workers, including those that Python there never handles.

    The C handler of a signal writes its number to a pipe immediately. Python's handler runs later, and never while
    native code does not return.

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
        """In a worker: sends its alarms from now on. Returns a function to call when Python has noticed one."""
        file = self._writers[worker].fileno()
        os.set_blocking(file, False)
        signal.set_wakeup_fd(file, warn_on_full_buffer=False)
        return partial(os.write, file, _NOTICED)

    def unnoticed(self) -> int | None:
        """A worker that has not noticed an alarm for many consecutive calls of this method, or None."""
        for worker, (reader, _) in enumerate(self._pipes):
            if reader.poll():
                alarmed = os.read(reader.fileno(), _MOST_BYTES)[-1] == signal.SIGALRM
                self._silent[worker] = 1 if alarmed else 0
            elif self._silent[worker]:
                self._silent[worker] += 1
            # Calls, not seconds: the processes may have been stopped meanwhile.
            if self._silent[worker] > _CALLS_UNTIL_NOTICED:
                return worker
        return None


class Supervisor:
    """Finds out which worker failed, and why. Workers have a copy, which reports to the main process's.

    Args:
        options: as configured.
        num_envs: environments of all workers together.
    """

    def __init__(self, options: WorkersConfig, num_envs: int) -> None:
        self._exceptions: Any = multiprocessing.get_context("spawn").SimpleQueue()
        self._alarms = Alarms(options.num_workers)
        self._timeout_s = options.timeout_s
        self._name = partial(name_of, workers=options.num_workers, num_envs=num_envs)

    def guard(self, worker: int) -> Callable[[], AbstractContextManager[None]]:
        """In a worker: what to run its environments in. Its alarms are reported from now on."""
        return partial(self._guarded, worker, self._alarms.send(worker))

    @contextmanager
    def _guarded(self, worker: int, noticed: Callable[[], object]) -> Iterator[None]:
        """Limits the time of steps; sends an exception to the main process, which prints it, and ends this process.

        Raises:
            SystemExit: there was an exception.
        """
        try:
            with time_limit(self._timeout_s, noticed):
                yield
        except Exception as error:
            self._exceptions.put((worker, *_portable(error)))
            raise SystemExit(1) from error

    def fault(self, processes: Sequence[BaseProcess], frames: int) -> Exception | None:
        """The fault of a worker, as an exception with its cause, or None.

        Args:
            processes: the workers.
            frames: frames delivered by each of them.
        """
        ended = next((worker for worker, process in enumerate(processes) if process.exitcode is not None), None)
        # In this order, because a worker reports before it ends.
        if not self._exceptions.empty():
            worker, pickled, said, printed = self._exceptions.get()
            return reported(self._name(worker), said if pickled is None else pickle.loads(pickled), printed)
        if ended is not None:
            return WorkerFaultError(f"{self._name(ended)} {_end(processes[ended].exitcode or 0, frames)}")
        hung = self._alarms.unnoticed()
        if hung is not None:
            return WorkerFaultError(f"{self._name(hung)} {_hang(self._timeout_s or 0.0, frames)}")
        return None

    def fault_of_lost(self, processes: Sequence[BaseProcess], frames: int) -> Exception | None:
        """The same for a worker that could not be reached, which gets time to end."""
        ending = connection.wait([process.sentinel for process in processes], timeout=_DYING_S)
        for process in processes:
            # Its files are closed a moment before its exit code is set.
            if process.sentinel in ending:
                process.join(_DYING_S)
        return self.fault(processes, frames)


def name_of(worker: int, workers: int, num_envs: int) -> str:
    """A worker by its number and those of its environments.

    Args:
        worker: its number.
        workers: W.
        num_envs: environments of all workers together, N.
    """
    count = num_envs // workers
    first = worker * count
    which = f"environment {first}" if count == 1 else f"environments {first} to {first + count - 1}"
    return f"Worker {worker} of {workers} ({which})"


def reported(name: str, error: Exception | str, printed: str) -> Exception:
    """The exception that the main process raises for one in a worker, which is its cause.

    Args:
        name: the worker's.
        error: the exception, or its message.
        printed: its traceback.
    """
    if isinstance(error, RunError):
        error = type(error)(f"{name}: {error}")
    elif not isinstance(error, ConfigError | UnsavableError):
        said = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        error = WorkerFaultError(f"{name} raised {said.rstrip('.')}. HYDRA_FULL_ERROR=1 shows where.")
    error.__cause__ = RemoteTraceback(f"\n{printed}")
    return error


def _hang(seconds: float, frames: int) -> str:
    return (
        f"hangs in native code after {frames} of its frames: no response within collector.timeout_s={seconds:g} s. If "
        f"its steps may take longer, give a larger limit, or null for none. {_CONTINUES}"
    )


def _end(exitcode: int, frames: int) -> str:
    after = f"after {frames} of its frames"
    if exitcode >= 0:
        return f"exited with code {exitcode} {after}. Its output says why."
    number = signal.Signals(-exitcode)
    return f"was killed by {number.name} {after}. {_ADVICE.get(number, _ELSEWHERE)} {_CONTINUES}"
