"""Training loops in separate processes, driven one call at a time."""

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
        pid: process id.
    """

    pid: int
    _pipe: Connection

    def call(self, method: str, *arguments: Any) -> tuple[float, Any]:
        """Calls a method of the loop; returns the seconds it took there, and its result.

        Raises:
            EOFError: the process has ended; see its standard error.
        """
        self._pipe.send((method, arguments))
        answer: tuple[float, Any] = self._pipe.recv()
        return answer


@contextmanager
def remote_loop(name: str, task: Task, threads: int) -> Iterator[RemoteLoop]:
    """Starts a process with a loop of :mod:`benchmarks.peers` that waits for calls.

    Args:
        name: module of the loop.
        task: what it trains on.
        threads: torch threads.

    Raises:
        EOFError: the loop could not be created; see the process's standard error.
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
    """Creates the loop and serves calls to its methods."""
    torch.set_num_threads(threads)
    made = importlib.import_module(f"benchmarks.peers.{name}").make(task)
    logging.getLogger("torchrl").setLevel(logging.WARNING)  # it logs to standard output
    pipe.send(True)
    while (called := pipe.recv()) is not None:
        method, arguments = called
        began = time.perf_counter()
        given = getattr(made, method)(*arguments)
        pipe.send((time.perf_counter() - began, given))
