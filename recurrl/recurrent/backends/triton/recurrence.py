"""Launches the kernels of linear cells, which states of any size in float32 and float64 have.

Shape legend: B rows, T steps; any further dimensions are a state's.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from recurrl.recurrent.backends.triton import linear_kernels
from recurrl.recurrent.linear_operators import RecurrenceCall

ENTRIES = 32
"""Of a plane, in one program: few and one warp, for many programs."""


def constants(width: int, pairs: bool) -> dict[str, Any]:
    """The kernels' compile-time constants and options."""
    return {"W": width, "BW": ENTRIES, "PAIRS": pairs, "num_warps": 1}


def forward(call: RecurrenceCall, b: Tensor) -> None:
    """See :meth:`~recurrl.recurrent.linear_operators.Kernels.forward`."""
    _run(linear_kernels.forward, call, b)


def backward(call: RecurrenceCall, grad: Tensor, grads: list[Tensor]) -> None:
    """See :meth:`~recurrl.recurrent.linear_operators.Kernels.backward`."""
    _run(linear_kernels.backward, call, grad, *grads, WANTS_STORED=len(grads[-1]) > 0)


def _run(kernel: Any, call: RecurrenceCall, *memory: Tensor, **wanted: bool) -> None:
    rows, steps, *shape = call.states.shape
    width = prod(shape) // (2 if call.pairs else 1)
    read = call.a, call.starts_BT.to(torch.int8), call.stored, call.states
    grid = rows, -(-width // ENTRIES)
    kernel[grid](*read, *memory, steps, *call.strides, **constants(width, call.pairs), **wanted)
