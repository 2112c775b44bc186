"""Stop requests by signals: SIGINT (Ctrl-C), SIGTERM (a scheduler) or SIGUSR1 (SLURM's early warning)."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_SAME_S = 5.0
"""Signals to a rank within this time count as one: SLURM and systemd signal all processes of a job, including torchrun,
which passes the signal on to the ranks."""


class Interrupted(KeyboardInterrupt):
    """A signal ends the run.

    Attributes:
        exit_code: 128 plus the signal's number, as in shells.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class StopRequest:
    """A request to end the run.

    A signal raises :class:`Interrupted`, except within :meth:`deferred`: there the first one is only recorded, so that
    the current work can finish; the second one raises. A process that torchrun started may receive each signal twice.

    Attributes:
        number: the recorded signal's number; 0 before.
    """

    def __init__(self) -> None:
        self.number = 0
        self._defers = False
        self._notice = ""
        self._same_until = 0.0

    def record(self, number: int) -> None:
        """Records a signal that this or another process of the run received, unless one is recorded already."""
        if self.number:
            return
        self.number = number
        if _is_rank():
            self._same_until = time.monotonic() + _SAME_S
        if self._notice:
            line = f"{signal.Signals(number).name}: {self._notice}\n"
            # Not through sys.stderr, which the signal may have interrupted. A terminal's progress line is still open.
            with suppress(OSError):
                os.write(2, (b"\n" if os.isatty(2) else b"") + line.encode())

    @contextmanager
    def deferred(self, notice: str = "") -> Iterator[None]:
        """Defers the first signal until the block ends.

        Args:
            notice: printed to standard error, after the signal's name, when the signal comes.

        Raises:
            Interrupted: a signal came.
        """
        self._defers, self._notice = True, notice
        try:
            yield
        finally:
            self._defers = False
        if self.number:
            raise Interrupted(self.number)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal."""
        if time.monotonic() < self._same_until:
            return
        if not self._defers or self.number:
            raise Interrupted(number)
        self.record(number)


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Handles the signals while the block runs.

    Outside the main thread it handles none, because Python allows that only there.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.receive) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) == request.receive:
                # A signal that comes twice must not kill a rank that is about to end.
                signal.signal(number, signal.SIG_IGN if request.number and _is_rank() else handler)


def ignore_signals() -> None:
    """Ignores signals in a worker process: a terminal sends them to workers too, but the main process handles them."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _is_rank() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ
