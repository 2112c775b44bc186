"""Compiled loops on a CPU, which the system's C compiler builds when a machine first runs them.

``kernel.c`` runs GRU and LSTM, ``recurrence.c`` the states of linear and matrix cells. Rows are read where they are:
nothing is packed or padded, and stored states are read at segment starts only.
"""

from __future__ import annotations

import torch

from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.native import library
from recurrl.recurrent.backends.native.loop import DTYPES, NOT_COMPILED, sequence
from recurrl.recurrent.cell import Cell
from recurrl.recurrent.linear import LinearCell
from recurrl.recurrent.matrix import MatrixCell

__all__ = ["DTYPES", "controls_matmul_precision", "sequence", "supports"]

controls_matmul_precision = False


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports GRU, LSTM without a projection, linear and matrix cells, on a CPU with a C compiler."""
    linear = isinstance(cell, LinearCell | MatrixCell)
    if cell.TORCH is None and not linear:
        return (
            f"backend=native has no kernel for cell={cell.name}, only for gru, lstm, and cells that are linear in "
            "their states. Choose backend=scan."
        )
    if linear and options.recompute != "none":
        return (
            f"recompute={options.recompute} is not possible with backend=native for a cell that is linear in its "
            "states, whose steps are not recomputed. Choose recompute=none."
        )
    if isinstance(cell, MatrixCell) and torch.compiler.is_compiling():
        return NOT_COMPILED
    projection = getattr(cell, "proj_size", 0)
    if projection:
        return (
            f"proj_size={projection} is not possible with backend=native, whose kernel treats the output as the "
            "state. Choose backend=pad or backend=scan."
        )
    if device is not None and device.type != "cpu":
        return f"backend=native needs device=cpu, and this is device={device}. Choose backend=auto."
    return library.problem()
