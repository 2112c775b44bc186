"""Calls a function in several ranks, forks of this process, and collects what they return."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any

from torch.distributed import TCPStore

from recurrl.runtime.ranks import world

TIMEOUT_S = 60


def met(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, after the ranks have met."""

    def met() -> Any:
        world().join()
        world().prepare("gloo", TIMEOUT_S)
        return call()

    return met


def in_ranks(size: int, call: Callable[[], Any]) -> list[Any]:
    """What the call returns on each rank."""
    # In a process of its own, as torchrun's: it outlives every rank.
    store, port = _start_store()
    pipes = [os.pipe() for _ in range(size)]
    children = [_fork(rank, size, port, pipe[1], call) for rank, pipe in enumerate(pipes)]
    results = []
    for child, (reader, writer) in zip(children, pipes, strict=True):
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            returned = pickle.loads(file.read() or pickle.dumps("nothing"))
        os.waitpid(child, 0)
        results.append(returned)
    os.kill(store, signal.SIGKILL)
    os.waitpid(store, 0)
    errors = [returned for returned in results if isinstance(returned, str)]
    assert not errors, "\n".join(errors)
    return results


def _start_store() -> tuple[int, int]:
    """The process of the store by which ranks meet, and its port."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, f"{store.port:05}".encode())
        signal.pause()
    os.close(writer)
    with os.fdopen(reader) as file:
        return child, int(file.read(5))


def _fork(rank: int, size: int, port: int, writer: int, call: Callable[[], Any]) -> int:
    child = os.fork()
    if child:
        return child
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    try:
        returned = call()
    except BaseException:
        returned = traceback.format_exc()
    with os.fdopen(writer, "wb") as file:
        pickle.dump(returned, file)
    os._exit(0)
