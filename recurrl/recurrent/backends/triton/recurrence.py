"""Launches the kernels of linear cells, for states of any size in float32 and float64.

Shape legend: B rows, T steps; any further dimensions are a state's.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from recurrl.recurrent.backends.triton import linear_kernels
from recurrl.recurrent.kernel import RecurrenceKernel

ENTRIES = 32
"""Entries of a plane per program: few, run by one warp, so that there are many programs."""


def constants(width: int, pairs: bool) -> dict[str, Any]:
    """The kernels' compile-time constants and options."""
    return {"W": width, "BW": ENTRIES, "PAIRS": pairs, "num_warps": 1}


class TritonRecurrence(RecurrenceKernel):
    """Both passes of the recurrence, with one program for each row and each block of a state's entries."""

    def launch(self, direction: str, states: Tensor, strides: tuple[int, ...], *tensors: Tensor) -> None:
        """See :meth:`~recurrl.recurrent.kernel.RecurrenceKernel.launch`."""
        (rows, steps, *shape), (a, stored, starts_BT, *memory) = states.shape, tensors
        width = prod(shape) // self.planes
        wanted = {"WANTS_STORED": len(memory[-1]) > 0} if direction == "backward" else {}
        kernel = getattr(linear_kernels, direction)[rows, -(-width // ENTRIES)]
        read = (a, starts_BT.to(torch.int8), stored, states)
        kernel(*read, *memory, steps, *strides, **constants(width, self.planes == 2), **wanted)
