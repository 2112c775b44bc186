"""Errors of workers: exceptions that they report, and deaths and hangs that the main process detects."""

import pickle
import signal
import traceback
from dataclasses import dataclass

from recurrl.envs.saved_state import UnsavableError
from recurrl.errors import ConfigError, RunError

_ADVICE = {
    signal.SIGKILL: "The system may have run out of memory (see dmesg): if so, give a smaller env.num_envs or "
    "collector.num_workers.",
    signal.SIGBUS: "Shared memory may have run out: in a container, give more with docker run --ipc=host or "
    "--shm-size.",
}
CONTINUES = "With collector.on_env_error=restart the run continues with a new one."
_ELSEWHERE = "PYTHONFAULTHANDLER=1 shows where."


class RemoteTraceback(Exception):  # noqa: N818  (not an error itself, but the origin of another one)
    """The traceback of an exception within its worker."""


class WorkerError(RunError):
    """A worker ended, or its environments raised an unexpected exception; the message says which worker."""


@dataclass(frozen=True)
class Failure:
    """What a worker returns in place of a result.

    Attributes:
        error: an exception in the worker or, if it cannot be pickled, its message; None if the worker was lost.
        printed: the exception's traceback, or what happened to a lost worker, as the predicate of a sentence.
    """

    error: Exception | str | None
    printed: str

    def exception(self, worker: str) -> Exception:
        """The exception to raise in the main process.

        Args:
            worker: the worker's description, for the message.
        """
        error = self.error
        if error is None:
            return WorkerError(f"{worker} {self.printed}")
        if isinstance(error, RunError):
            error = type(error)(f"{worker}: {error}")
        elif not isinstance(error, ConfigError | UnsavableError):
            message = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            error = WorkerError(f"{worker} raised {message.rstrip('.')}. HYDRA_FULL_ERROR=1 shows where.")
        error.__cause__ = RemoteTraceback(f"\n{self.printed}")
        return error


def reported(error: Exception) -> Failure:
    """An exception in the form in which a worker sends it."""
    printed = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except (pickle.PicklingError, TypeError, AttributeError):
        return Failure(f"{type(error).__name__}: {error}", printed)
    return Failure(error, printed)


def hung(seconds: float, frames: int) -> Failure:
    """The failure of a worker that does not return from native code.

    Args:
        seconds: the time limit.
        frames: frames that it had collected.
    """
    return Failure(
        None,
        f"hangs in native code after {frames} of its frames: no response within collector.timeout_s={seconds:g} s. If "
        f"its steps may take longer, give a larger limit, or null for none. {CONTINUES}",
    )


def ended(exitcode: int, frames: int) -> Failure:
    """The failure of a worker whose process ended.

    Args:
        exitcode: the process's exit code; negative for a signal.
        frames: frames that it had collected.
    """
    after = f"after {frames} of its frames"
    if exitcode >= 0:
        return Failure(None, f"exited with code {exitcode} {after}. Its output says why.")
    number = signal.Signals(-exitcode)
    return Failure(None, f"was killed by {number.name} {after}. {_ADVICE.get(number, _ELSEWHERE)} {CONTINUES}")
