"""Launches the kernels of linear cells, which states of any size in float32 and float64 have.

Shape legend: B rows, T steps; any further dimensions are a state's.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from recurrl.recurrent.backends.triton import linear_kernels
from recurrl.recurrent.recurrence_kernel import COMPLEX, REAL, RecurrenceKernel

ENTRIES = 32
"""Of a plane, in one program: few and one warp, for many programs."""


def constants(width: int, pairs: bool) -> dict[str, Any]:
    """The kernels' compile-time constants and options."""
    return {"W": width, "BW": ENTRIES, "PAIRS": pairs, "num_warps": 1}


def recurrence(a: Tensor, b: Tensor, starts_BT: Tensor, stored: Tensor, pair: int | None) -> Tensor:
    """As :func:`~recurrl.recurrent.linear_recurrence.linear_recurrence`, by the kernels; differentiable once."""
    kernel = TritonRecurrence(REAL if pair is None else COMPLEX)
    return kernel.run(True, a.expand(b.shape), b, starts_BT, stored)[0]


class TritonRecurrence(RecurrenceKernel):
    """The kernels, a program for each row and some entries of a state."""

    def launch(
        self, direction: str, a: Tensor, stored: Tensor, starts_BT: Tensor, states: Tensor, *memory: Tensor
    ) -> None:
        """See :meth:`~recurrl.recurrent.recurrence_kernel.RecurrenceKernel.launch`."""
        rows, steps, *shape = states.shape
        width = prod(shape) // self.planes
        wanted = {"WANTS_STORED": len(memory[-1]) > 0} if direction == "backward" else {}
        strides = (*a.stride()[:2], *stored.stride()[:2])
        kernel = getattr(linear_kernels, direction)[rows, -(-width // ENTRIES)]
        read = (a, starts_BT.to(torch.int8), stored, states)
        kernel(*read, *memory, steps, *strides, **constants(width, self.planes == 2), **wanted)
