"""A compiled loop on a CPU, ``kernel.c``, which the system's C compiler builds when a machine first runs it.

Rows are read where they are: nothing is packed or padded, and stored states are read at segment starts only.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.native import library
from recurrl.recurrent.backends.native.ops import layer
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.gated import GatedCell
from recurrl.recurrent.segments import Segments

OWN_PRODUCTS = False
DTYPES = (torch.float32, torch.float64)
"""The dtypes that it computes in."""


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports GRU and LSTM without a projection, on a CPU with a C compiler."""
    if not _has_kernel(cell):
        return (
            f"backend=native has no kernel for cell={cell.name}, only for {' and '.join(library.CELLS)}. "
            "Choose backend=scan."
        )
    if cell.proj_size:
        return (
            f"proj_size={cell.proj_size} is not possible with backend=native, whose kernel treats the output as the "
            "state. Choose backend=pad or backend=scan."
        )
    if options.recompute == "chunk":
        return "recompute=chunk is not possible with backend=native. Choose recompute=full, or backend=scan."
    if device is not None and device.type != "cpu":
        return f"backend=native needs device=cpu, and this is device={device}. Choose backend=auto."
    return library.problem()


def _has_kernel(cell: Cell) -> TypeGuard[GatedCell]:
    # The name alone may be that of another cell.
    return cell.TORCH is not None and cell.name in library.CELLS


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
    return layer(
        x_BTI,
        weights["weight_ih"],
        weights["weight_hh"],
        weights.get("bias_ih"),
        weights.get("bias_hh"),
        segments.starts_BT,
        stored_states,
        cell.name,
        recompute=options.recompute == "full",
    )
