"""Time limits: an environment that hangs must not hang the run."""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from recurrl.errors import RunError

_LATE_S = 1.0
"""An alarm this late means that the process was stopped (Ctrl-Z, a scheduler); that time does not count."""

logger = logging.getLogger(__name__)


class TimeLimitError(RunError):
    """A call took too long."""


class _Limit:
    """The limit of this process, which has one timer.

    Attributes:
        seconds: how long a call may take; 0 for no limit.
        due: deadline of the current call ``[1]``, by the monotonic clock; infinity without one.
    """

    seconds = 0.0
    due = np.full(1, np.inf)

    def begin(self, now: float) -> None:
        self.due[0] = now + self.seconds
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def alarm(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self.due[0] > _LATE_S:
            self.begin(now)
        elif self.due[0] < np.inf:
            raise TimeLimitError(
                f"no response within collector.timeout_s={self.seconds:g} s. If its steps may take longer, increase "
                "the limit, or set it to null"
            )


_limit = _Limit()


@contextmanager
def time_limit(seconds: float | None, due: np.ndarray[Any, Any] | None = None) -> Iterator[None]:
    """Limits each block of :func:`limited` to a number of seconds, while the block of this function runs.

    In a block that takes longer, :class:`TimeLimitError` is raised wherever it is in Python. Native code is interrupted
    only where it waits for the operating system; else the error is raised once it returns.

    Only the main thread of a process can have a limit; other threads log a warning.

    Args:
        seconds: None for no limit.
        due: shared memory ``[1]`` for the deadline of the current call, by the monotonic clock, infinity between calls.
            It lets another process detect native code that does not return.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if seconds is not None and not is_main:
        logger.warning("collector.timeout_s=%g has no effect outside the main thread of a process.", seconds)
    if seconds is None or not is_main:
        yield
        return
    before = signal.signal(signal.SIGALRM, _limit.alarm)
    _limit.seconds, _limit.due = seconds, np.full(1, np.inf) if due is None else due
    try:
        yield
    finally:
        _limit.seconds = 0.0
        signal.signal(signal.SIGALRM, before)


@contextmanager
def limited() -> Iterator[None]:
    """Gives a block the limit that :func:`time_limit` sets. Such blocks must not be nested."""
    if not _limit.seconds:
        yield
        return
    _limit.begin(time.monotonic())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        _limit.due[0] = np.inf
