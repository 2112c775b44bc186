"""A compiled loop on a CPU, ``kernel.c``, which the system's C compiler builds when a machine first runs it.

Rows are read where they are: nothing is packed or padded, and stored states are read at segment starts only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.native import library
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.gated import AnalyticCell
from recurrl.recurrent.operators import Settings, layer
from recurrl.recurrent.segments import Segments

controls_matmul_precision = False
DTYPES = (torch.float32, torch.float64)
"""The dtypes that it computes in."""


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports GRU and LSTM without a projection, on a CPU with a C compiler."""
    if cell.TORCH is None:
        return (
            f"backend=native has no kernel for cell={cell.name}, only for {' and '.join(library.CELLS)}. "
            "Choose backend=scan."
        )
    projection = getattr(cell, "proj_size", 0)
    if projection:
        return (
            f"proj_size={projection} is not possible with backend=native, whose kernel treats the output as the "
            "state. Choose backend=pad or backend=scan."
        )
    if options.recompute == "chunk":
        return "recompute=chunk is not possible with backend=native. Choose recompute=full, or backend=scan."
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
    assert isinstance(cell, AnalyticCell)
    keep = options.recompute == "none"
    settings = Settings(keep_gates=keep, keep_states=keep)
    return layer("native", cell, x_BTI, segments.starts_BT, stored_states, weights, settings)
