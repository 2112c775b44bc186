"""Signals: deferred while something is under way, raised otherwise."""

import os
import pty
import signal
from contextlib import contextmanager

import pytest

from recurrl.runtime.signals import SIGNALS, Interrupted, stop_request


def send(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_interrupts_at_once_with_the_exit_code_that_shells_use(number):
    with pytest.raises(Interrupted) as caught, stop_request():
        send(number)
    assert caught.value.exit_code == 128 + number


def test_a_signal_that_torchrun_passes_on_again_is_no_second_one(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    before = [signal.getsignal(number) for number in SIGNALS]
    done = []
    try:
        with pytest.raises(Interrupted) as caught, stop_request() as request, request.deferred():
            done.append(send(signal.SIGUSR1, signal.SIGUSR1))
        send(signal.SIGUSR1)  # while the rank ends
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
    assert done
    assert caught.value.exit_code == 138


@contextmanager
def standard_error(writer):
    """Has this process write its standard error there."""
    kept = os.dup(2)
    os.dup2(writer, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@pytest.mark.parametrize(("make", "end"), [(os.pipe, "\n"), (pty.openpty, "\r\n")], ids=["file", "terminal"])
def test_the_first_deferred_signal_prints_a_message_at_once(make, end):
    printed = []
    reader, writer = make()

    def work():
        os.write(2, b"25% |")
        send(signal.SIGUSR1)
        while "moment" not in "".join(printed):
            printed.append(os.read(reader, 100).decode())

    with pytest.raises(Interrupted), standard_error(writer), stop_request() as request, request.deferred("one moment"):
        work()
    os.close(reader)
    os.close(writer)
    # On a terminal it comes after the progress line, which has no end.
    assert "".join(printed) == f"25% |{end if make is pty.openpty else ''}SIGUSR1: one moment{end}"


def test_an_error_within_the_block_is_not_hidden_by_the_signal():
    def fail():
        send(signal.SIGTERM)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), stop_request() as request, request.deferred():
        fail()
