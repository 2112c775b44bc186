"""A compiled loop on a CPU, ``kernel.c``, which the system's C compiler builds when a machine first runs it.

Rows are read where they are: nothing is packed or padded, and stored states are read at segment starts only.
"""

from __future__ import annotations

import torch

from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.native import library
from recurrl.recurrent.backends.native.loop import DTYPES, sequence
from recurrl.recurrent.cell import Cell

__all__ = ["DTYPES", "controls_matmul_precision", "sequence", "supports"]

controls_matmul_precision = False


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports GRU and LSTM without a projection, on a CPU with a C compiler."""
    if cell.TORCH is None:
        return f"backend=native has no kernel for cell={cell.name}, only for gru and lstm. Choose backend=scan."
    projection = getattr(cell, "proj_size", 0)
    if projection:
        return (
            f"proj_size={projection} is not possible with backend=native, whose kernel treats the output as the "
            "state. Choose backend=pad or backend=scan."
        )
    if device is not None and device.type != "cpu":
        return f"backend=native needs device=cpu, and this is device={device}. Choose backend=auto."
    return library.problem()
