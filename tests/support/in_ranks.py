"""Calls a function in several ranks, forks of this process, and collects what they return."""

import os
import pickle
import signal
import traceback
from typing import BinaryIO, NamedTuple

import torch
from torch.distributed import TCPStore

from recurrl.runtime.ranks import world

TIMEOUT_S = 60


class Started(NamedTuple):
    """Ranks that were started.

    Attributes:
        store: the process by which they meet, as torchrun's: it outlives all of them.
        processes: of the ranks.
        files: where each writes what it returns.
    """

    store: int
    processes: list[int]
    files: list[BinaryIO]

    def end(self):
        """What each rank returned, once all have ended; None from one that was killed."""
        returned = []
        for process, file in zip(self.processes, self.files, strict=True):
            with file:
                written = file.read()
            os.waitpid(process, 0)
            returned.append(pickle.loads(written) if written else None)
        os.kill(self.store, signal.SIGKILL)
        os.waitpid(self.store, 0)
        return returned


def in_ranks(size, call):
    """What the call returns on each rank."""
    returned = start(size, call).end()
    errors = [each for each in returned if isinstance(each, str)]
    assert not errors, "\n".join(errors)
    return returned


def met(call):
    """The call, after the ranks have met."""

    def met():
        world().join()
        world().connect("cpu", TIMEOUT_S)
        return call()

    return met


def start(size, call):
    """Starts ranks that call a function. Its exception is returned as a string."""
    reader, writer = os.pipe()
    store = os.fork()
    if store == 0:
        served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, f"{served.port:05}".encode())
        signal.pause()
    port = int(os.read(reader, 5))
    pipes = [os.pipe() for _ in range(size)]
    writers = [writer for _, writer in pipes]
    processes = [_fork(rank, writers, port, call) for rank in range(size)]
    for descriptor in (reader, writer, *writers):
        os.close(descriptor)
    return Started(store, processes, [os.fdopen(pipe, "rb") for pipe, _ in pipes])


def _fork(rank, writers, port, call):
    child = os.fork()
    if child:
        return child
    size, own = len(writers), writers[rank]
    for descriptor in set(writers) - {own}:
        os.close(descriptor)
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    signal.alarm(5 * TIMEOUT_S)  # ends a rank that hangs
    torch.set_num_threads(1)  # those that the parent process has started are not in a fork
    try:
        returned = call()
    except BaseException:
        returned = traceback.format_exc()
    with os.fdopen(own, "wb") as file:
        pickle.dump(returned, file)
    os._exit(0)
