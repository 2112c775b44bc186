"""Rows, resets and segments.

A *row* is T consecutive steps. A *segment* is a piece of a row between resets: it starts at step 0 or where
``is_init`` is set, and ends at the step before the next start, or at T − 1. Within a segment the state flows; at its
start it is replaced by the stored state.

Shape legend: B rows, T steps, N segments, S steps of the longest segment, X any further dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Segments sorted by length, longest first, and their steps laid out step by step.

    Step 0 of all N segments comes first, then step 1 of those that have one, and so on: the layout of torch's
    ``PackedSequence``. Serial depth is the longest segment, there is no padding, and no state crosses a reset.
    """

    rows_and_steps: torch.Size
    """(B, T) of the rows."""

    positions: Tensor
    """``[B·T]``: the flat index within the rows of each packed step."""

    batch_sizes: Tensor
    """``[S]``, on the CPU, not increasing: how many segments are still running at each step."""

    starts_N: Tensor
    """Flat index of each segment's first step, in packed order of the segments."""

    ends_N: Tensor
    """Flat index of each segment's last step, likewise."""

    def pack(self, values_BTX: Tensor) -> Tensor:
        """``[B, T, ...]`` to packed ``[B·T, ...]``."""
        return values_BTX.flatten(0, 1)[self.positions]

    def unpack(self, packed: Tensor) -> Tensor:
        """Inverse of ``pack``."""
        return self._scatter(packed, self.positions)

    def at_starts(self, values_BTX: Tensor) -> Tensor:
        """``[B, T, ...]`` to ``[N, ...]``: the values at the segments' first steps."""
        return values_BTX.flatten(0, 1)[self.starts_N]

    def at_ends(self, values_NX: Tensor) -> Tensor:
        """``[N, ...]`` to ``[B, T, ...]``: one value a segment, put at its last step; zero elsewhere."""
        return self._scatter(values_NX, self.ends_N)

    def _scatter(self, values: Tensor, index: Tensor) -> Tensor:
        flat = values.new_zeros(self.rows_and_steps.numel(), *values.shape[1:])
        return flat.index_copy(0, index, values).unflatten(0, self.rows_and_steps)


@dataclass(frozen=True)
class Segments:
    """The segments of a batch of rows. ``starts_BT`` is true at the first step of each.

    Everything beyond ``starts_BT`` and ``ends_BT`` depends on the data's values and is computed when first asked for,
    so that a backend that does not ask can be traced by ``torch.compile``.
    """

    starts_BT: Tensor

    @classmethod
    def from_is_init(cls, is_init_BT: Tensor) -> Segments:
        """Segments from the reset marks ``[B, T]`` (bool). Step 0 always starts one."""
        starts = is_init_BT.clone()
        starts[:, 0] = True
        return cls(starts)

    @property
    def ends_BT(self) -> Tensor:
        """True at the last step of each segment."""
        return torch.cat((self.starts_BT[:, 1:], torch.ones_like(self.starts_BT[:, :1])), 1)

    @cached_property
    def any_reset(self) -> bool:
        """Whether any row holds more than one segment."""
        return bool(self.starts_BT[:, 1:].any())

    @cached_property
    def packing(self) -> Packing:
        """The steps of all segments in packed order."""
        flat_starts_N = self.starts_BT.flatten().nonzero().squeeze(1)
        lengths_N = torch.diff(flat_starts_N, append=flat_starts_N.new_tensor([self.starts_BT.numel()]))
        lengths_N, order_N = lengths_N.sort(descending=True, stable=True)
        flat_starts_N = flat_starts_N[order_N]
        offsets_S1 = torch.arange(int(lengths_N[0]), device=lengths_N.device)[:, None]
        running_SN = offsets_S1 < lengths_N
        return Packing(
            rows_and_steps=self.starts_BT.shape,
            positions=(flat_starts_N + offsets_S1)[running_SN],
            batch_sizes=running_SN.sum(1).cpu(),
            starts_N=flat_starts_N,
            ends_N=flat_starts_N + lengths_N - 1,
        )
