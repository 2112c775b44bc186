"""Training loops in separate processes, driven one call at a time."""

import importlib.util
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import multiprocessing

from benchmarks.peers.task import Loop, Task

NEEDS = {"sb3_contrib": "sb3-contrib", "skrl": "skrl"}
"""Package to install for loops that recurrl's dependencies do not include."""


def not_installed(loops: Iterable[str]) -> list[str]:
    """The loops whose packages are missing; reports on standard error what to install."""
    missing = [loop for loop in loops if loop in NEEDS and importlib.util.find_spec(loop) is None]
    for loop in missing:
        sys.stderr.write(f"Skipping {loop}, which is not installed. To include it: pip install {NEEDS[loop]}\n")
    return missing


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
    loop: Loop = importlib.import_module(f"benchmarks.peers.{name}").make(task)
    logging.getLogger("torchrl").setLevel(logging.WARNING)  # it logs to standard output
    pipe.send(True)
    while (called := pipe.recv()) is not None:
        method, arguments = called
        began = time.perf_counter()
        result = getattr(loop, method)(*arguments)
        pipe.send((time.perf_counter() - began, result))
