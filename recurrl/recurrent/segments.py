"""Rows, resets and segments.

A *row* is T consecutive steps. A *segment* is a piece of a row between resets: it starts at step 0 or where
``is_init`` is set, and ends before the next start or at T − 1. Within a segment the state carries over; at its start
the stored state replaces it.

Shape legend: B rows, T steps, N segments, S steps of the longest segment, P steps of all rows (B·T), X any further
dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class Packing:
    """Segments sorted by length, longest first, and their steps laid out step by step.

    Step 0 of all N segments comes first, then step 1 of those that have one, and so on, as in torch's
    ``PackedSequence``. Serial depth is the longest segment, there is no padding, and no state crosses a reset.

    Attributes:
        rows_and_steps: (B, T) of the rows.
        batch_sizes: number of segments still running at each of the S steps; non-increasing.
        starts_N: flat index of each segment's first step, in packed order of the segments.
        ends_N: flat index of each segment's last step, in the same order.
        positions_P: flat index into the rows of each packed step.
        inverse_P: packed index of each row step.
        before_P: index of the state before each packed step, among the N initial states followed by the states after
            each row step.
    """

    rows_and_steps: torch.Size
    batch_sizes: list[int]
    starts_N: Tensor
    ends_N: Tensor
    positions_P: Tensor
    inverse_P: Tensor
    before_P: Tensor

    def pack(self, values_BTX: Tensor) -> Tensor:
        """``[B, T, ...]`` to packed ``[P, ...]``."""
        return values_BTX.flatten(0, 1).index_select(0, self.positions_P)

    def unpack(self, packed_PX: Tensor) -> Tensor:
        """Inverse of ``pack``."""
        return packed_PX.index_select(0, self.inverse_P).unflatten(0, self.rows_and_steps)

    def at_starts(self, values_BTX: Tensor) -> Tensor:
        """``[B, T, ...]`` to ``[N, ...]``: the values at the segments' first steps."""
        return values_BTX.flatten(0, 1).index_select(0, self.starts_N)

    def at_ends(self, values_NX: Tensor) -> Tensor:
        """``[N, ...]`` to ``[B, T, ...]``: one value per segment, at its last step; zero elsewhere."""
        flat = values_NX.new_zeros(self.rows_and_steps.numel(), *values_NX.shape[1:])
        return flat.index_copy_(0, self.ends_N, values_NX).unflatten(0, self.rows_and_steps)


@dataclass(frozen=True)
class Segments:
    """The segments of a batch of rows, from ``is_init_BT`` (bool), which may be true at step 0 or not.

    ``packing`` depends on the data's values and is computed lazily, so that ``torch.compile`` can trace backends that
    do not use it.
    """

    is_init_BT: Tensor

    @property
    def starts_BT(self) -> Tensor:
        """True at the first step of each segment, and so always at step 0."""
        starts_BT = self.is_init_BT.clone()
        starts_BT[:, 0] = True
        return starts_BT

    @property
    def ends_BT(self) -> Tensor:
        """True at the last step of each segment."""
        return functional.pad(self.is_init_BT[:, 1:], (0, 1), value=True)

    @cached_property
    def packing(self) -> Packing:
        """The steps of all segments in packed order."""
        on_cpu = self.starts_BT.bool().cpu()
        return _packing_of(on_cpu.shape, on_cpu.numpy().tobytes(), self.is_init_BT.device)

    def mirrored(self, values_BTX: Tensor) -> Tensor:
        """Reverses each segment of ``[B, T, ...]``; twice gives the original."""
        rows, steps = self.is_init_BT.shape
        step_1T = torch.arange(steps, device=self.is_init_BT.device)[None, :]
        start_BT = torch.where(self.starts_BT, step_1T, 0).cummax(1).values
        end_BT = torch.where(self.ends_BT, step_1T, steps).flip(1).cummin(1).values.flip(1)
        row_B1 = torch.arange(rows, device=self.is_init_BT.device)[:, None]
        mirror_P = (row_B1 * steps + start_BT + end_BT - step_1T).flatten()
        return values_BTX.flatten(0, 1).index_select(0, mirror_P).unflatten(0, (rows, steps))


CACHED_PACKINGS = 64


# Every recurrent module that sees a batch, and every epoch over a minibatch, needs its packing. The cache is keyed by
# the content of the reset flags, so it can never return the packing of another batch.
@lru_cache(CACHED_PACKINGS)
def _packing_of(rows_and_steps: torch.Size, starts: bytes, device: torch.device) -> Packing:
    # In numpy, whose calls cost a fraction of torch's on small arrays.
    starts_N = np.flatnonzero(np.frombuffer(starts, bool))
    lengths_N = np.diff(starts_N, append=len(starts))
    order_N = np.argsort(-lengths_N, kind="stable")
    starts_N, lengths_N = starts_N[order_N], lengths_N[order_N]
    offsets_S1 = np.arange(lengths_N[0])[:, None]
    running_SN = offsets_S1 < lengths_N
    positions_P = (starts_N + offsets_S1)[running_SN]
    inverse_P = np.empty_like(positions_P)
    inverse_P[positions_P] = np.arange(len(positions_P))
    before_P = np.concatenate((np.arange(len(starts_N)), len(starts_N) + positions_P[len(starts_N) :] - 1))
    indices = (starts_N, starts_N + lengths_N - 1, positions_P, inverse_P, before_P)
    # Training may reuse a packing first computed in inference mode, whose tensors autograd rejects.
    with torch.inference_mode(False):
        on_device = [torch.from_numpy(values).to(device) for values in indices]
    return Packing(rows_and_steps, running_SN.sum(1).tolist(), *on_device)


def expanded(flags: Tensor, values: Tensor) -> Tensor:
    """The flags, with dimensions of size one appended until they have as many dimensions as ``values``."""
    return flags.view(*flags.shape, *[1] * (values.ndim - flags.ndim))


def only_ends(states: Iterable[Tensor], is_init_BT: Tensor) -> tuple[Tensor, ...]:
    """The states ``[B, T, ...]`` at the segments' last steps, zero elsewhere."""
    ends_BT = Segments(is_init_BT).ends_BT
    return tuple([torch.where(expanded(ends_BT, state), state, 0.0) for state in states])
