"""Errors of workers: exceptions that they report, and deaths and hangs that the main process detects."""

import signal

from recurrl.envs.saved_state import UnsavableError
from recurrl.errors import ConfigError, RunError, message_of

_ADVICE = {
    signal.SIGKILL: "The system may have run out of memory (see dmesg): if so, set a smaller env.num_envs or "
    "collector.num_workers.",
    signal.SIGBUS: "Shared memory may have run out: in a container, allow more with docker run --ipc=host or "
    "--shm-size.",
}
CONTINUES = "With collector.on_env_error=restart the run continues with a new one."
_ELSEWHERE = "PYTHONFAULTHANDLER=1 shows where."


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


def attributed(error: Exception, worker: str) -> Exception:
    """The exception, with the worker's description before the message if it is a :class:`RunError`."""
    if isinstance(error, RunError):
        error.args = (f"{worker} {error}" if isinstance(error, WorkerError) else f"{worker}: {error}",)
    return error


def hung(seconds: float, frames: int) -> WorkerError:
    """The error of a worker that does not return from native code.

    Args:
        seconds: the time limit.
        frames: frames that it had collected.
    """
    return WorkerError(
        f"hangs in native code after collecting {frames} frames: no response within collector.timeout_s={seconds:g} s. "
        f"If its steps may take longer, set a larger limit, or null for none. {CONTINUES}"
    )


def ended(exitcode: int, frames: int) -> WorkerError:
    """The error of a worker whose process ended.

    Args:
        exitcode: the process's exit code; negative for a signal.
        frames: frames that it had collected.
    """
    after = f"after collecting {frames} frames"
    if exitcode >= 0:
        return WorkerError(f"exited with code {exitcode} {after}. Its output says why.")
    number = signal.Signals(-exitcode)
    return WorkerError(f"was killed by {number.name} {after}. {_ADVICE.get(number, _ELSEWHERE)} {CONTINUES}")
