"""Compiled loops on a CPU, which the system's C compiler builds when a machine first runs them.

``kernel.c`` runs GRU and LSTM, ``recurrence.c`` the states of linear cells. Rows are read where they are: nothing is
packed or padded, and stored states are read at segment starts only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.native import library
from recurrl.recurrent.backends.native.loop import DTYPES
from recurrl.recurrent.backends.native.recurrence import recurrence
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.gated import AnalyticCell
from recurrl.recurrent.linear import LinearCell
from recurrl.recurrent.operators import layer
from recurrl.recurrent.segments import Segments

__all__ = ["DTYPES", "controls_matmul_precision", "sequence", "supports"]

controls_matmul_precision = False


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports GRU, LSTM without a projection and linear cells, on a CPU with a C compiler."""
    linear = isinstance(cell, LinearCell)
    if cell.TORCH is None and not linear:
        return (
            f"backend=native has no kernel for cell={cell.name}, only for gru, lstm and linear cells. Choose "
            "backend=scan."
        )
    if linear and options.recompute != "none":
        return (
            f"recompute={options.recompute} is not possible with backend=native for a linear cell, which has no steps "
            "to recompute. Choose recompute=none."
        )
    projection = getattr(cell, "proj_size", 0)
    if projection:
        return (
            f"proj_size={projection} is not possible with backend=native, whose kernel treats the output as the "
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
    if isinstance(cell, LinearCell):
        x_BTX = cell.project(weights, x_BTI)
        output_BTO, states = cell.scan(recurrence, weights, x_BTX, segments.starts_BT, stored_states)
        return output_BTO, tuple(segments.only_ends(state) for state in states)
    assert isinstance(cell, AnalyticCell)
    return layer("native", cell, x_BTI, segments, stored_states, weights, keep=options.recompute == "none")
