"""Rows, resets and segments.

A *row* is T consecutive steps. A *segment* is a piece of a row between resets: it starts at step 0 or where
``is_init`` is set, and ends before the next start or at T − 1. Within a segment the state carries over; at its start
the stored state replaces it.

Shape legend: B rows, T steps, N segments, S steps of the longest segment, P steps of all rows (B·T), X any further
dimensions, R rows of memory for states.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Steps:
    """Packed steps, and indices into a state buffer ``[R, X]``, R = N + P: the initial states, then those after each
    packed step.
    """

    sizes: list[int]
    """Number of segments still running at each time step; non-increasing."""

    last_N: Tensor
    """Buffer rows of the states after each segment's last step."""

    before_P: Tensor | None
    """Buffer rows of the states before each packed step; None if these are the first P."""

    positions_P: Tensor | None = None
    """See :class:`Packing`. None if callers' values are packed too."""

    inverse_P: Tensor | None = None

    @classmethod
    def of_sizes(cls, sizes: list[int], device: torch.device) -> Steps:
        """Steps for callers whose values are already packed."""
        segments, steps = sizes[0], sum(sizes)
        if segments == sizes[-1]:
            return cls(sizes, torch.arange(steps, steps + segments, device=device), None)
        sizes_S = np.asarray(sizes)
        lengths_N = np.searchsorted(-sizes_S, -np.arange(segments))
        last_N = segments + (np.cumsum(sizes_S) - sizes_S)[lengths_N - 1] + np.arange(segments)
        before_P = segments + np.arange(steps) - np.repeat([segments, *sizes[:-1]], sizes)
        return cls(sizes, torch.from_numpy(last_N).to(device), torch.from_numpy(before_P).to(device))

    def entered(self, states_RX: Tensor, begin: int, end: int) -> Tensor:
        """The states before packed steps ``begin`` to ``end``."""
        if self.before_P is None:
            return states_RX[begin:end]
        return states_RX.index_select(0, self.before_P[begin:end])

    def packed(self, values_PX: Tensor, begin: int, end: int) -> Tensor:
        """Packed steps ``begin`` to ``end`` of values in row order."""
        if self.positions_P is None:
            return values_PX[begin:end]
        return values_PX.index_select(0, self.positions_P[begin:end])

    def unpacked(self, packed_PX: Tensor) -> Tensor:
        """Packed values in row order, in new memory."""
        return packed_PX.clone() if self.inverse_P is None else packed_PX.index_select(0, self.inverse_P)

    def pack_into(self, values_PX: Tensor, out_PX: Tensor) -> None:
        """Writes values in row order to ``out_PX`` in packed order."""
        if self.positions_P is None:
            out_PX.copy_(values_PX)
        else:
            torch.index_select(values_PX, 0, self.positions_P, out=out_PX)

    def unpack_into(self, packed_CX: Tensor, out_PX: Tensor, begin: int, end: int) -> None:
        """Writes packed steps ``begin`` to ``end`` to their places in row order."""
        if self.positions_P is None:
            out_PX[begin:end] = packed_CX
        else:
            out_PX.index_copy_(0, self.positions_P[begin:end], packed_CX)


@dataclass(frozen=True, eq=False)
class Packing:
    """Segments sorted by length, longest first, and their steps laid out step by step.

    Step 0 of all N segments comes first, then step 1 of those that have one, and so on, as in torch's
    ``PackedSequence``. Serial depth is the longest segment, there is no padding, and no state crosses a reset.
    """

    rows_and_steps: torch.Size
    """(B, T) of the rows."""

    steps: Steps
    """Steps for values in row order; if no row holds a reset, for values already packed."""

    starts_N: Tensor
    """Flat index of each segment's first step, in packed order of the segments."""

    ends_N: Tensor
    """Flat index of each segment's last step, in the same order."""

    lengths_N: np.ndarray
    """Steps of each segment, in the same order."""

    positions_P: Tensor | None
    """Flat index into the rows of each packed step; None if no row holds a reset: the packed layout is then the rows'
    transpose.
    """

    inverse_P: Tensor | None
    """Packed index of each row step; None as above."""

    @property
    def batch_sizes(self) -> list[int]:
        """Number of segments still running at each of the S steps; non-increasing."""
        return self.steps.sizes

    def pack(self, values_BTX: Tensor) -> Tensor:
        """``[B, T, ...]`` to packed ``[P, ...]``."""
        if self.positions_P is None or self.inverse_P is None:
            return values_BTX.transpose(0, 1).flatten(0, 1)
        return permuted(values_BTX.flatten(0, 1), self.positions_P, self.inverse_P)

    def unpack(self, packed_PX: Tensor) -> Tensor:
        """Inverse of ``pack``."""
        if self.positions_P is None or self.inverse_P is None:
            rows, steps = self.rows_and_steps
            return packed_PX.unflatten(0, (steps, rows)).transpose(0, 1)
        return permuted(packed_PX, self.inverse_P, self.positions_P).unflatten(0, self.rows_and_steps)

    def at_starts(self, values_BTX: Tensor) -> Tensor:
        """``[B, T, ...]`` to ``[N, ...]``: the values at the segments' first steps."""
        return values_BTX.flatten(0, 1).index_select(0, self.starts_N)

    def at_ends(self, values_NX: Tensor) -> Tensor:
        """``[N, ...]`` to ``[B, T, ...]``: one value per segment, at its last step; zero elsewhere."""
        flat = values_NX.new_zeros(self.rows_and_steps.numel(), *values_NX.shape[1:])
        return flat.index_copy_(0, self.ends_N, values_NX).unflatten(0, self.rows_and_steps)


@dataclass(frozen=True)
class Segments:
    """The segments of a batch of rows. ``starts_BT`` is true at the first step of each.

    ``packing`` depends on the data's values and is computed lazily, so that ``torch.compile`` can trace backends that
    do not use it.
    """

    starts_BT: Tensor

    @classmethod
    def from_is_init(cls, is_init_BT: Tensor) -> Segments:
        """Segments from the reset flags ``[B, T]`` (bool). Step 0 always starts one."""
        starts = is_init_BT.clone()
        starts[:, 0] = True
        return cls(starts)

    @property
    def ends_BT(self) -> Tensor:
        """True at the last step of each segment."""
        return torch.cat((self.starts_BT[:, 1:], torch.ones_like(self.starts_BT[:, :1])), 1)

    def only_ends(self, values_BTX: Tensor) -> Tensor:
        """The values ``[B, T, ...]`` at the segments' last steps, zero elsewhere."""
        return torch.where(expanded(self.ends_BT, values_BTX), values_BTX, 0.0)

    @cached_property
    def any_reset(self) -> bool:
        """True if any row holds more than one segment."""
        return self.packing.positions_P is not None

    @cached_property
    def packing(self) -> Packing:
        """The steps of all segments in packed order."""
        return _packing_of(self.starts_BT)

    @cached_property
    def mirror_P(self) -> Tensor:
        """Flat index of each step's mirror image within its segment, for the backward direction."""
        return self._mirror()

    def _mirror(self) -> Tensor:
        rows, steps = self.starts_BT.shape
        step_1T = torch.arange(steps, device=self.starts_BT.device)[None, :]
        start_BT = torch.where(self.starts_BT, step_1T, 0).cummax(1).values
        end_BT = torch.where(self.ends_BT, step_1T, steps).flip(1).cummin(1).values.flip(1)
        row_B1 = torch.arange(rows, device=self.starts_BT.device)[:, None]
        return (row_B1 * steps + start_BT + end_BT - step_1T).flatten()

    def mirrored(self, values_BTX: Tensor) -> Tensor:
        """Reverses each segment of ``[B, T, ...]``. Its own inverse."""
        # In Python 3.11 a cached property takes a lock, which torch.compile cannot trace.
        mirror_P = self._mirror() if torch.compiler.is_compiling() else self.mirror_P
        flat = permuted(values_BTX.flatten(0, 1), mirror_P, mirror_P)
        return flat.unflatten(0, self.starts_BT.shape)


# Every recurrent module that sees a batch, and every epoch over a minibatch, needs its packing. The cache is keyed by
# the content of the reset flags, so it can never return another batch's.
CACHED_PACKINGS = 64
_packings: OrderedDict[tuple[Any, ...], Packing] = OrderedDict()


def _packing_of(starts_BT: Tensor) -> Packing:
    on_cpu = starts_BT.cpu().contiguous()
    key = (tuple(on_cpu.shape), starts_BT.device, on_cpu.numpy().tobytes())
    found = _packings.pop(key, None)
    if found is None:
        # Training may reuse a packing first computed in inference mode, whose tensors autograd rejects.
        with torch.inference_mode(False):
            found = _pack(on_cpu, starts_BT.device)
        while len(_packings) >= CACHED_PACKINGS:
            _packings.popitem(last=False)
    _packings[key] = found
    return found


def _pack(starts_BT: Tensor, device: torch.device) -> Packing:
    rows, steps = starts_BT.shape
    # In numpy, whose calls cost a fraction of torch's on small arrays.
    starts_N = np.flatnonzero(starts_BT.numpy())
    if len(starts_N) == rows:
        first_N = torch.from_numpy(starts_N).to(device)
        unbroken = Steps.of_sizes([rows] * steps, device)
        return Packing(starts_BT.shape, unbroken, first_N, first_N + steps - 1, np.full(rows, steps), None, None)
    lengths_N = np.diff(starts_N, append=starts_BT.numel())
    order_N = np.argsort(-lengths_N, kind="stable")
    starts_N, lengths_N = starts_N[order_N], lengths_N[order_N]
    ends_N = starts_N + lengths_N - 1
    offsets_S1 = np.arange(lengths_N[0])[:, None]
    running_SN = offsets_S1 < lengths_N
    positions_P = (starts_N + offsets_S1)[running_SN]
    inverse_P = np.empty_like(positions_P)
    inverse_P[positions_P] = np.arange(len(positions_P))
    # The state before a step is the one after the previous step of its row, except at segment starts.
    before_P = inverse_P[positions_P - 1] + len(starts_N)
    before_P[: len(starts_N)] = np.arange(len(starts_N))
    first_N, end_N, last_N, before, positions, inverse = (
        torch.from_numpy(values).to(device)
        for values in (starts_N, ends_N, inverse_P[ends_N] + len(starts_N), before_P, positions_P, inverse_P)
    )
    packed = Steps(running_SN.sum(1).tolist(), last_N, before, positions, inverse)
    return Packing(starts_BT.shape, packed, first_N, end_N, lengths_N, positions, inverse)


def expanded(flags: Tensor, values: Tensor) -> Tensor:
    """The flags of ``values``' first dimensions, with a dimension of size one for each further one."""
    return flags.view(*flags.shape, *[1] * (values.ndim - flags.ndim))


def permuted(values: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    """``values[index]`` along the first dimension for a permutation, whose gradient is another permutation.

    (Plain indexing scatter-adds its gradient into zeros, which a permutation does not need.) ``index`` may repeat a row
    if the gradient is zero at all occurrences but the one in ``inverse``.
    """
    if in_transform() or torch.compiler.is_compiling():
        return values.index_select(0, index)
    return _Permuted.apply(values, index, inverse)  # type: ignore[no-untyped-call]


def in_transform() -> bool:
    """True inside a ``torch.func`` transform such as ``vmap``, where tensor values cannot be read and hand-written
    derivatives are ignored.
    """
    return torch._C._functorch.maybe_current_level() is not None


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(index, inverse)
        return values.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        index, inverse = ctx.saved_tensors
        return permuted(grad, inverse, index), None, None
