"""Training loops in processes of their own, which do what they are told when it is their turn."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import multiprocessing

from benchmarks.peers import Task


@dataclass(frozen=True)
class RemoteLoop:
    """A loop in another process.

    Attributes:
        pid: of the process.
    """

    pid: int
    _pipe: Connection

    def call(self, method: str, *arguments: Any) -> tuple[float, Any]:
        """Calls a method of the loop: the seconds that it took there, and what it gave.

        Raises:
            EOFError: the process has ended; what went wrong is on its standard error.
        """
        self._pipe.send((method, arguments))
        answer: tuple[float, Any] = self._pipe.recv()
        return answer


@contextmanager
def remote_loop(name: str, task: Task, threads: int) -> Iterator[RemoteLoop]:
    """A process that has made a loop of :mod:`benchmarks.peers`, and waits.

    Args:
        name: of the loop's module.
        task: what it trains on.
        threads: of torch.

    Raises:
        EOFError: the loop could not be made; what went wrong is on the process's standard error.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, name, task, threads))
    process.start()
    assert process.pid is not None
    theirs.close()
    try:
        ours.recv()
        yield RemoteLoop(process.pid, ours)
        ours.send(None)
    finally:
        ours.close()
        process.join(timeout=10)
        if process.is_alive():
            process.kill()


def _serve(pipe: Connection, name: str, task: Task, threads: int) -> None:
    """Makes the loop, and calls its methods as it is told to."""
    torch.set_num_threads(threads)
    made = importlib.import_module(f"benchmarks.peers.{name}").make(task)
    logging.getLogger("torchrl").setLevel(logging.WARNING)  # it says what it does on standard output
    pipe.send(True)
    while (called := pipe.recv()) is not None:
        method, arguments = called
        began = time.perf_counter()
        given = getattr(made, method)(*arguments)
        pipe.send((time.perf_counter() - began, given))
