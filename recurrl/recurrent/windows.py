"""Windows over the steps of rows with resets.

Shape legend: B rows, T steps, K entries of a stored window, C features; any further dimensions are an entry's.
"""

from __future__ import annotations

import torch
from torch import Tensor


def windows(entries: Tensor, starts_BT: Tensor, stored: Tensor) -> Tensor:
    """At each step the last K + 1 entries, the oldest first: ``[B, T, K + 1, ...]``.

    Entries from before a segment come from the window stored at the segment's start.

    Args:
        entries: one per step, ``[B, T, ...]``.
        starts_BT: where segments start.
        stored: windows before each step, ``[B, T, K, ...]``; read at starts only.
    """
    (rows, steps), length = starts_BT.shape, stored.shape[2]
    step = torch.arange(steps, device=entries.device)
    start_BT1 = torch.where(starts_BT, step, 0).cummax(1).values.unsqueeze(-1)
    # Place k of step t's window is the entry of step t − K + k, or, if that is before the segment, a stored entry.
    source_TK = step.unsqueeze(-1) + torch.arange(-length, 1, device=entries.device)
    before = source_TK - start_BT1
    row_B11 = torch.arange(rows, device=entries.device).view(-1, 1, 1)
    own = entries[row_B11, source_TK.clamp(min=0)]
    earlier = stored[row_B11, start_BT1, (before + length).clamp(0, length - 1)]
    return torch.where(before.view(*before.shape, *[1] * (own.ndim - 3)) < 0, earlier, own)


def convolved(window: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A short convolution, of each feature on its own: ``[..., C]`` from a window ``[..., K + 1, C]``.

    Args:
        window: the last entries, the oldest first.
        weight: ``[K + 1, C]``.
        bias: ``[C]``.
    """
    mixed = (window * weight).sum(-2)
    return mixed if bias is None else mixed + bias
