"""Loops in C for the CPU, which the system's compiler builds the first time a machine needs them.

``kernel.c`` runs GRU and LSTM, ``recurrence.c`` the states of linear and matrix cells. Rows are read in place: nothing
is packed or padded, and stored states are read at segment starts only.

Shape legend: B rows, T steps, I input size, X size of a projected input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.native import library
from recurrl.recurrent.backends.native.loop import NativeLayer
from recurrl.recurrent.backends.native.recurrence import NativeRecurrence, memories
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.gated import AnalyticCell
from recurrl.recurrent.linear import LinearCell
from recurrl.recurrent.matrix import MatrixCell
from recurrl.recurrent.segments import Segments

controls_matmul_precision = False
DTYPES = (torch.float32, torch.float64)
"""The dtypes that the kernel computes in."""


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports GRU, LSTM without a projection, linear and matrix cells, on a CPU with a C compiler."""
    if cell.TORCH is None and not isinstance(cell, LinearCell | MatrixCell):
        return (
            f"backend=native has no kernel for cell={cell.name}, only for gru, lstm, and cells that are linear in "
            "their states. Choose backend=scan."
        )
    if cell.proj_size:
        return (
            f"proj_size={cell.proj_size} is not possible with backend=native, whose kernel treats the output as the "
            "state. Choose backend=pad or backend=scan."
        )
    if device is not None and device.type != "cpu":
        return f"backend=native needs device=cpu, and this is device={device}. Choose backend=auto."
    return library.problem()


def sequence(
    cell: Cell, x_BTI: Tensor, segments: Segments, stored_states: States, weights: Weights, options: Options
) -> tuple[Tensor, States]:
    """Runs one layer with the kernel.

    Raises:
        ValueError: the dtype is neither float32 nor float64.
    """
    if x_BTI.dtype not in DTYPES:
        raise ValueError(
            f"backend=native computes in float32 or float64, but the layer's dtype is {x_BTI.dtype}. "
            "Choose backend=scan."
        )
    if isinstance(cell, AnalyticCell):
        return NativeLayer(cell).sequence(x_BTI, segments, stored_states, weights)
    x_BTX, starts_BT = cell.project(weights, x_BTI), segments.starts_BT
    if isinstance(cell, LinearCell):
        return cell.scan(NativeRecurrence.recurrence, weights, x_BTX, starts_BT, stored_states)
    assert isinstance(cell, MatrixCell)
    return cell.scan(memories, weights, x_BTX, starts_BT, stored_states)
