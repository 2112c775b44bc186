"""The processes of a run that ``torchrun`` started: its ranks. They collect side by side and learn as one.

Code that needs something of all ranks calls the methods of :func:`world`. In a run of one process these return what
they are given, and ``torch.distributed`` is not used.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from recurrl.errors import RunError
from recurrl.runtime.exchange import Distributed, Exchange, Sockets
from recurrl.runtime.signals import ignore_signals

if TYPE_CHECKING:
    from torch import Tensor

Values = TypeVar("Values")

_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOST = "lost"
"""The key under which a rank that cannot reach the others writes why."""
_GONE_S = 10.0
"""Time limit for finding out which rank ended after the connection to one was lost."""


class RankLostError(RunError):
    """Another rank ended, or does not respond; the message says which."""


class World:
    """The ranks of a run, of which this process is one.

    Attributes:
        rank: of this process; rank 0 also logs, evaluates and writes.
        local_rank: among the ranks on this machine.
        size: the number of ranks.
        has_met: the ranks have met before.
    """

    def __init__(self) -> None:
        self.rank, self.local_rank, self.size = 0, 0, 1
        self.has_met = False

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replaces a tensor by its sum over ranks, the same bits on all of them, and returns it."""
        if self.size > 1:
            with self._others():
                self._gradients.sum_(tensor)
        return tensor

    def gathered(self, tensor: Tensor) -> Tensor:
        """A small tensor of each rank ``[ranks, ...]``, on all of them."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        with self._others():
            return self._values.gathered(tensor.detach()).to(tensor.device)

    def averaged(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The mean of each metric over ranks, which have the same ones."""
        if self.size == 1:
            return dict(metrics)
        import torch

        own = torch.tensor(list(metrics.values()), dtype=torch.float64)
        return dict(zip(metrics, self.gathered(own).mean(0).tolist(), strict=True))

    def gather(self, values: Values) -> list[Values]:
        """Plain values of each rank, on rank 0; on the others, their own alone."""
        if self.size == 1:
            return [values]
        with self._others():
            return self._values.gather(values) or [values]

    def broadcast(self, values: Any = None) -> Any:
        """Plain values of rank 0, on all ranks."""
        if self.size == 1:
            return values
        with self._others():
            return self._values.broadcast(values)

    def scatter(self, values: Sequence[Any] = ()) -> Any:
        """Rank 0's plain values, one for each rank: this rank's."""
        return self.broadcast(values)[self.rank]

    def join(self) -> None:
        """Meets the other ranks.

        Raises:
            RankLostError: they did not come.
        """
        from torch import distributed

        dist: Any = distributed  # typed in part only
        self.rank, self.local_rank = launched_rank(), int(os.environ["LOCAL_RANK"])
        self._dist = dist
        self._parent = os.getppid()
        with self._others():
            store, _, size = next(dist.rendezvous("env://"))
            self._store = dist.PrefixStore("recurrl", store)
            dist.init_process_group("gloo", store=self._store, rank=self.rank, world_size=size)
            found: list[Any] = [None] * size
            dist.all_gather_object(found, (socket.gethostname(), os.getpid()))
        self._processes: list[tuple[str, int]] = found
        self._values: Exchange = Distributed(self.rank, size)
        self._gradients: Exchange = self._values
        self.size, self.has_met = size, True

    def leave(self) -> None:
        """Closes the connections, if there are any: their threads must not outlive the interpreter."""
        if self.size > 1:
            if isinstance(self._values, Sockets):
                self._values.close()
            self._dist.destroy_process_group()
            self.rank, self.local_rank, self.size = 0, 0, 1

    def prepare(self, backend: str, timeout_s: float) -> None:
        """Prepares for learning.

        Args:
            backend: that sums gradients: ``local``, ``gloo`` or ``nccl``.
            timeout_s: after so long without an answer of the others, the ranks end.
        """
        with self._others():
            if backend == "local":
                processes = [process for _, process in self._processes]
                self._values = Sockets(self.rank, processes, self._store, timeout_s)
            else:
                self._values = self._group("gloo", timeout_s)
            self._gradients = self._values
            if backend == "nccl":
                import torch

                torch.cuda.set_device(self.local_rank)
                self._gradients = self._group("nccl", timeout_s)

    def _group(self, backend: str, timeout_s: float) -> Distributed:
        group = self._dist.new_group(backend=backend, timeout=timedelta(seconds=timeout_s))
        return Distributed(self.rank, self.size, group)

    @property
    def is_orphaned(self) -> bool:
        """True once torchrun has ended without ending this process."""
        return self.size > 1 and os.getppid() != self._parent

    def failed(self, error: BaseException) -> None:
        """Tells the others why this rank ends, if it is not that another one did."""
        if self.size == 1 or isinstance(error, RankLostError):
            return
        # Without torchrun's store they find out that it ended.
        with suppress(RuntimeError):
            self._store.set(f"failed/{self.rank}", f"failed: {error}")

    @contextmanager
    def _others(self) -> Iterator[None]:
        """Says which rank is the reason if the others cannot be reached."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            # torchrun sends SIGTERM to the ranks that are left. They end anyway, and first say why.
            ignore_signals()
            message = self._who(error)
            # Ranks that lose touch with this one, because it ends, then say the same.
            with suppress(RuntimeError):
                self._store.set(_LOST, message)
            raise RankLostError(message) from error

    def _who(self, error: Exception) -> str:
        deadline = time.monotonic() + _GONE_S
        while hasattr(self, "_processes") and time.monotonic() < deadline:
            for rank in range(self.size):
                if rank != self.rank and (end := self._end_of(rank)) is not None:
                    host, process = self._processes[rank]
                    # A rank that ended because it lost another one has said so before.
                    return self._told(_LOST) or f"Rank {rank} of {self.size} (process {process} on {host}) {end}"
            if (said := self._told(_LOST)) is not None:
                return said
            time.sleep(0.1)
        reason = (str(error).splitlines() or ["no reason given"])[0]
        return (
            f"The ranks lost touch with one another ({reason}), but all seem to be running. If one took long, in an "
            "evaluation for example, give a larger ranks.timeout_s."
        )

    def _end_of(self, rank: int) -> str | None:
        """How a rank ended; None if it runs, or if nothing is known of it."""
        host, process = self._processes[rank]
        gone = host == socket.gethostname() and not _is_running(process)
        if (said := self._told(f"failed/{rank}")) is not None:
            return said
        if gone:
            return (
                "ended without a message: it was killed, perhaps because memory ran out (see torchrun's report and "
                "dmesg). resume=auto in the same hydra.run.dir continues the run."
            )
        return None

    def _told(self, key: str) -> str | None:
        with suppress(RuntimeError):  # torchrun, which holds the store, may have ended too
            if self._store.check([key]):
                return str(self._store.get(key).decode())
        return None


_world = World()


def world() -> World:
    """The ranks of this process's run."""
    return _world


def launched_size() -> int:
    """The number of processes that torchrun started; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in _VARIABLES) else 1


def can_be_local() -> bool:
    """All of them are processes of this machine, and can exchange by sockets."""
    return sys.platform == "linux" and int(os.environ.get("LOCAL_WORLD_SIZE", 0)) == launched_size()


def launched_rank() -> int:
    """This process's number among them."""
    return int(os.environ["RANK"]) if launched_size() > 1 else 0


def _is_running(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return not sys.platform.startswith("linux")
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
