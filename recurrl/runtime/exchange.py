"""The exchange of tensors and values between ranks: by ``torch.distributed``, or by sockets on one machine."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


_LENGTH = struct.Struct("=Q")


class Exchange(Protocol):
    """Every rank calls the same methods in the same order.

    They raise RuntimeError or OSError if another rank has ended or does not respond in time.
    """

    def sum_(self, tensor: Tensor) -> None:
        """Replaces a tensor by its sum over ranks, the same bits on all of them."""

    def gathered(self, tensor: Tensor) -> Tensor:
        """A tensor of each rank ``[ranks, ...]``, on the CPU of all of them."""

    def gather(self, values: Any) -> list[Any] | None:
        """Plain values of each rank, on rank 0."""

    def broadcast(self, values: Any) -> Any:
        """Plain values of rank 0, on all ranks."""


class Distributed:
    """By a process group of ``torch.distributed``."""

    def __init__(self, rank: int, size: int, group: Any = None) -> None:
        from torch import distributed

        self._rank, self._size, self._group = rank, size, group
        self._dist: Any = distributed  # typed in part only

    def sum_(self, tensor: Tensor) -> None:
        """See :class:`Exchange`."""
        self._dist.all_reduce(tensor, group=self._group)

    def gathered(self, tensor: Tensor) -> Tensor:
        """See :class:`Exchange`."""
        own = tensor.cpu().contiguous()
        rows = own.new_empty(self._size, *own.shape)
        self._dist.all_gather(list(rows), own, group=self._group)
        return rows

    def gather(self, values: Any) -> list[Any] | None:
        """See :class:`Exchange`."""
        found = [None] * self._size if self._rank == 0 else None
        self._dist.gather_object(values, found, group=self._group)
        return found

    def broadcast(self, values: Any) -> Any:
        """See :class:`Exchange`."""
        held = [values]
        self._dist.broadcast_object_list(held, group=self._group)
        return held[0]


class Sockets:
    """By sockets between rank 0 and each other rank, all of them processes of one Linux machine.

    Gloo hands messages to threads of its own, which wait for a core that a rank computes on: the sum of the default
    policy's gradients takes it four to ten times as long (docs/scaling.md).
    """

    def __init__(self, rank: int, processes: Sequence[int], store: Any, timeout_s: float) -> None:
        """Connects the ranks.

        Args:
            rank: of this process.
            processes: of all ranks, by which they recognise one another.
            store: the key-value store of ``torch.distributed`` that all ranks have.
            timeout_s: time limit for an answer of another rank.
        """
        self._rank, self._size = rank, len(processes)
        connect = _accepted if rank == 0 else _connected
        self._peers = connect(processes, store, timeout_s)

    def sum_(self, tensor: Tensor) -> None:
        """See :class:`Exchange`."""
        own = tensor.detach().cpu().contiguous()
        if self._rank == 0:
            other = own.new_empty(own.shape)
            for peer in self._peers:
                _receive(peer, _bytes(other))
                own += other
        else:
            self._send(_bytes(own))
        self._share(_bytes(own))
        if own.data_ptr() != tensor.data_ptr():
            tensor.copy_(own)

    def gathered(self, tensor: Tensor) -> Tensor:
        """See :class:`Exchange`."""
        own = tensor.cpu().contiguous()
        rows = own.new_empty(self._size, *own.shape)
        if self._rank == 0:
            rows[0] = own
            for row, peer in zip(rows[1:], self._peers, strict=True):
                _receive(peer, _bytes(row))
        else:
            self._send(_bytes(own))
        self._share(_bytes(rows))
        return rows

    def gather(self, values: Any) -> list[Any] | None:
        """See :class:`Exchange`."""
        if self._rank == 0:
            return [values, *map(_received, self._peers)]
        self._send(_pickled(values))
        return None

    def broadcast(self, values: Any) -> Any:
        """See :class:`Exchange`."""
        if self._rank > 0:
            return _received(self._peers[0])
        self._send(_pickled(values))
        return values

    def close(self) -> None:
        """Closes the connections."""
        for peer in self._peers:
            peer.close()

    def _send(self, data: Any) -> None:
        """To rank 0, or from it to all others."""
        for peer in self._peers:
            peer.sendall(data)

    def _share(self, data: memoryview) -> None:
        """Replaces data by rank 0's."""
        if self._rank == 0:
            self._send(data)
        else:
            _receive(self._peers[0], data)


def _accepted(processes: Sequence[int], store: Any, timeout_s: float) -> list[socket.socket]:
    """Rank 0's sockets, in the order of ranks."""
    peers: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(timeout_s)
        listener.bind("")  # Linux then chooses a free name, which is no file
        listener.listen()
        store.set("socket", listener.getsockname())
        while len(peers) < len(processes) - 1:
            peer, _ = listener.accept()
            process = _process_behind(peer)
            if process not in processes:
                peer.close()
                continue
            peer.settimeout(timeout_s)
            peers[process] = peer
    return [peers[process] for process in processes[1:]]


def _connected(processes: Sequence[int], store: Any, timeout_s: float) -> list[socket.socket]:
    """The socket to rank 0."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(timeout_s)
    peer.connect(store.get("socket"))
    if _process_behind(peer) != processes[0]:
        raise ConnectionError("another process than rank 0 answered")
    return [peer]


def _process_behind(peer: socket.socket) -> int:
    process: int = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return process


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    import torch

    array: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(array)


def _receive(peer: socket.socket, into: memoryview) -> None:
    while into:
        count = peer.recv_into(into)
        if count == 0:
            raise ConnectionError("a connection was closed")
        into = into[count:]


def _pickled(values: Any) -> bytes:
    data = pickle.dumps(values)
    return _LENGTH.pack(len(data)) + data


def _received(peer: socket.socket) -> Any:
    length = bytearray(_LENGTH.size)
    _receive(peer, memoryview(length))
    data = bytearray(_LENGTH.unpack(length)[0])
    _receive(peer, memoryview(data))
    return pickle.loads(data)
