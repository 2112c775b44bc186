"""The ranks of a run: the processes that ``torchrun`` started. Each collects its own rollouts, and all learn together.

The methods of :func:`world` exchange values between ranks. In a run of one process they return what a single rank
would get, and ``torch.distributed`` is not used.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from recurrl.errors import RunError, message_of
from recurrl.runtime.metrics import floats, means
from recurrl.runtime.signals import ignore_signals

if TYPE_CHECKING:
    from torch import Tensor

Values = TypeVar("Values")

_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_REASON = "reason"
"""The key in torchrun's store under which the first rank that fails, or loses another one, publishes why."""


class RankLostError(RunError):
    """Another rank failed, ended or does not respond. The message has its error, if it published one."""


class World:
    """The ranks of a run, seen from one of them.

    All ranks must call the methods that exchange values, in the same order. These raise :class:`RankLostError` if
    another rank ended or does not respond in time.

    Attributes:
        rank: this process's rank; rank 0 also logs, evaluates and writes.
        local_rank: this process's rank among those on this machine.
        size: the number of ranks.
        has_joined: true if the ranks are, or were, connected.
    """

    def __init__(self) -> None:
        self.rank, self.local_rank, self.size = 0, 0, 1
        self.has_joined = False
        self._lost: RankLostError | None = None

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        """Replaces a tensor by its sum over ranks, which is bitwise the same on all of them, and returns it."""
        if self.size > 1:
            with self._lost_rank_named():
                self._dist.all_reduce(tensor, group=self._gradients)
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Gathers a small tensor from each rank, as ``[ranks, ...]`` on all of them."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        with self._lost_rank_named():
            own = tensor.detach().cpu().contiguous()
            rows = own.new_empty(self.size, *own.shape)
            self._dist.all_gather(list(rows), own, group=self._values)
            return rows.to(tensor.device)

    def averaged(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The mean of each metric over the ranks that have it, on all of them, as floats."""
        return dict(self.broadcast(means(self.gather_objects(floats(metrics)))))

    def gather_objects(self, values: Values) -> list[Values]:
        """Gathers plain values from each rank on rank 0. Other ranks get only their own."""
        if self.size == 1:
            return [values]
        gathered: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self._lost_rank_named():
            self._dist.gather_object(values, gathered, group=self._values)
        return gathered or [values]

    def broadcast(self, values: Any = None) -> Any:
        """Sends plain values of rank 0 to all ranks, and returns them."""
        if self.size == 1:
            return values
        message = [values]
        with self._lost_rank_named():
            self._dist.broadcast_object_list(message, group=self._values)
        return message[0]

    def join(self) -> None:
        """Connects this process to the other ranks over gloo, with torch's time limits."""
        from torch import distributed

        dist: Any = distributed  # typed in part only
        self.rank, self.local_rank = launched_rank(), int(os.environ["LOCAL_RANK"])
        self._dist, self._store, self._lost = dist, None, None
        self._parent = os.getppid()
        with self._lost_rank_named():
            store, _, size = next(dist.rendezvous("env://"))
            self._store = dist.PrefixStore(self._agreed_name(store, size), store)
            dist.init_process_group("gloo", store=self._store, rank=self.rank, world_size=size)
        self._values = self._gradients = dist.group.WORLD
        self.size, self.has_joined = size, True

    def _agreed_name(self, store: Any, size: int) -> str:
        """A name that rank 0 gives to its part of torchrun's store, which holds all keys of the ranks before a restart.

        Each of the others asks by a key that no process before it can have used, and confirms the answer. So a key of a
        rank that has ended is answered too, but confirmed by nobody.
        """
        own, waiting = uuid.uuid4().hex, set(range(1, size))
        if self.rank > 0:
            store.set(f"recurrl {self.rank}", own)
            name = str(store.get(own).decode())  # waits until it is there
            store.set(f"{name} {self.rank}", "")
            return name
        ends = time.monotonic() + store.timeout.total_seconds()
        while waiting := {rank for rank in waiting if not store.check([f"{own} {rank}"])}:
            for key in (f"recurrl {rank}" for rank in waiting):
                if store.check([key]):
                    store.set(store.get(key).decode(), own)
            if time.monotonic() > ends:
                raise RuntimeError(f"ranks {sorted(waiting)} have not joined within {store.timeout}")
            time.sleep(0.02)
        return own

    def connect(self, device: str, timeout_s: float) -> None:
        """Connects the ranks for training.

        Args:
            device: with ``cuda``, where each rank has a GPU, NCCL sums gradients. Gloo exchanges everything else.
            timeout_s: time limit for a response of the other ranks.
        """
        limit = timedelta(seconds=timeout_s)
        with self._lost_rank_named():
            self._values = self._gradients = self._dist.new_group(backend="gloo", timeout=limit)
            if device == "cuda":
                import torch

                torch.cuda.set_device(self.local_rank)
                self._gradients = self._dist.new_group(backend="nccl", timeout=limit)

    def leave(self) -> None:
        """Closes the connections, if there are any: their threads must not outlive the interpreter."""
        if self.size > 1:
            self._dist.destroy_process_group()
            self.rank, self.local_rank, self.size = 0, 0, 1

    @property
    def is_orphaned(self) -> bool:
        """True once torchrun has ended without ending this process."""
        return self.size > 1 and os.getppid() != self._parent

    def publish_failure(self, error: BaseException) -> None:
        """Publishes why this rank ends, unless the reason is another rank."""
        if self.size > 1 and not isinstance(error, RankLostError):
            process = f"process {os.getpid()} on {socket.gethostname()}"
            self._publish(f"Rank {self.rank} of {self.size} ({process}) failed: {error}")

    @contextmanager
    def _lost_rank_named(self) -> Iterator[None]:
        """Turns a failed exchange within the block into a :class:`RankLostError`; later exchanges fail at once.

        Raises:
            RankLostError: the message says why the rank was lost.
        """
        if self._lost is not None:
            raise self._lost
        try:
            yield
        except (RuntimeError, OSError) as error:
            # torchrun sends SIGTERM to the remaining ranks. They end anyway, and first say why.
            ignore_signals()
            # A rank that failed has published its reason before it ended.
            reason = self._publish(
                f"A rank was lost ({message_of(error)}). If torchrun reports that it was killed, perhaps out of memory "
                "(see dmesg), resume=auto in the same hydra.run.dir continues the run. If it took long, in an "
                "evaluation for example, set a larger ranks.timeout_s."
            )
            self._lost = RankLostError(reason)
            raise self._lost from error

    def _publish(self, reason: str) -> str:
        """Publishes why the run ends, unless another rank already has, and returns the published reason."""
        if self._store is None:  # the ranks have not agreed on theirs
            return reason
        with suppress(RuntimeError):  # torchrun, which hosts the store, may have ended too
            return str(self._store.compare_set(_REASON, "", reason).decode())
        return reason


_world = World()


def world() -> World:
    """The ranks of this process's run."""
    return _world


def launched_size() -> int:
    """The number of processes that torchrun started; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in _VARIABLES) else 1


def launched_rank() -> int:
    """This process's rank; 0 without torchrun."""
    return int(os.environ["RANK"]) if launched_size() > 1 else 0
