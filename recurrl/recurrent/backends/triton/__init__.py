"""Fused CUDA kernels: a whole sequence of one layer in one launch each way, or one launch per step of a large one.

For a linear cell, a kernel runs the recurrence of each state; torch computes the rest.

triton is imported when the first layer runs, so that everything else works without it.

Shape legend: B rows, T steps, I input size, X size of a projected input.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from recurrl.recurrent import precision
from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.triton import tiles
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.gated import AnalyticCell
from recurrl.recurrent.linear import LinearCell
from recurrl.recurrent.segments import Segments

controls_matmul_precision = True
_ALTERNATIVE = "Choose backend=auto, or backend=pad on a GPU and backend=scan on a CPU."


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports GRU and LSTM without a projection up to 1,024 features, and linear cells, on CUDA or under triton's
    interpreter.
    """
    return _without_kernel(cell, options, device) or _without_device(device)


def _without_kernel(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    if isinstance(cell, LinearCell):
        mode, dtype = options.precision, options.compute_dtype
        return None if device is None else precision.unsupported_by_torch("triton", mode, dtype, device)
    # The name alone is not enough: a custom cell may have the same one.
    if cell.TORCH is None or cell.name not in tiles.CELLS:
        return (
            f"backend=triton has no kernel for the cell {cell.name}, only for {', '.join(tiles.CELLS)}, and cells that "
            "are linear in their states. Choose backend=scan."
        )
    if cell.proj_size:
        return f"proj_size={cell.proj_size} is not possible with backend=triton. {_ALTERNATIVE}"
    if cell.hidden_size > tiles.MAX_HIDDEN_SIZE:
        return (
            f"hidden_size={cell.hidden_size} is not possible with backend=triton, whose kernels are tested "
            f"up to {tiles.MAX_HIDDEN_SIZE} features: beyond, one step keeps torch's own kernels busy. {_ALTERNATIVE}"
        )
    return None


def _without_device(device: torch.device | None) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return f"backend=triton needs the package triton, which is not installed. {_ALTERNATIVE}"
    if device is None or (device.type != "cuda" and os.environ.get("TRITON_INTERPRET") == "1"):
        return None
    if device.type != "cuda":
        return (
            f"backend=triton needs a CUDA device, and this is device={device}. {_ALTERNATIVE} (For tests, "
            "TRITON_INTERPRET=1, set before Python starts, runs the kernels on a CPU, slowly.)"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return (
            f"backend=triton needs compute capability 8.0 or above, but device={device} has "
            f"{capability[0]}.{capability[1]}. {_ALTERNATIVE}"
        )
    return None


def _precision(options: Options, device: torch.device) -> str:
    concrete = "bf16" if options.compute_dtype == torch.bfloat16 else precision.resolve(options.precision, device)
    return "bf16 emulated" if concrete == "bf16" and device.type != "cuda" else concrete


def sequence(
    cell: Cell, x_BTI: Tensor, segments: Segments, stored_states: States, weights: Weights, options: Options
) -> tuple[Tensor, States]:
    """Runs one layer with the kernels.

    Raises:
        ValueError: the dtype is not float32; for a linear cell, neither that nor float64.
    """
    # Only here, because they import triton.
    from recurrl.recurrent.backends.triton.loop import TritonLayer
    from recurrl.recurrent.backends.triton.recurrence import TritonRecurrence

    if isinstance(cell, LinearCell):
        if x_BTI.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"backend=triton computes linear cells in float32 or float64, but the layer's dtype is {x_BTI.dtype}. "
                "Choose backend=scan."
            )
        x_BTX, starts_BT = cell.project(weights, x_BTI), segments.starts_BT
        return cell.scan(TritonRecurrence.recurrence, weights, x_BTX, starts_BT, stored_states)
    assert isinstance(cell, AnalyticCell)
    if x_BTI.dtype != torch.float32:
        raise ValueError(
            f"backend=triton computes in float32, but the layer's dtype is {x_BTI.dtype}. For bfloat16 matmuls choose "
            "precision=bf16; for other dtypes choose backend=pad or backend=scan."
        )
    concrete = _precision(options, x_BTI.device)
    return TritonLayer(cell, concrete).sequence(x_BTI, segments, stored_states, weights)
