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
from recurrl.recurrent.backends import Options, missing_kernel_reason
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
    if reason := missing_kernel_reason("triton", cell, LinearCell):
        return reason
    if isinstance(cell, LinearCell):
        mode, dtype = options.precision, options.compute_dtype
        if device is not None and (reason := precision.unsupported_by_torch("triton", mode, dtype, device)):
            return reason
    elif cell.hidden_size > tiles.MAX_HIDDEN_SIZE:
        return (
            f"hidden_size={cell.hidden_size} is not supported by backend=triton, whose kernels are tested "
            f"up to {tiles.MAX_HIDDEN_SIZE} features: beyond, one step keeps torch's own kernels busy. {_ALTERNATIVE}"
        )
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

    dtypes = (torch.float32, torch.float64) if isinstance(cell, LinearCell) else (torch.float32,)
    if x_BTI.dtype not in dtypes:
        raise ValueError(
            f"backend=triton computes {cell.name} in {' or '.join(map(str, dtypes))}, but the layer's dtype is "
            f"{x_BTI.dtype}. Choose backend=scan; for bfloat16 matmuls of gru and lstm, choose precision=bf16."
        )
    if isinstance(cell, LinearCell):
        x_BTX, starts_BT = cell.project(weights, x_BTI), segments.starts_BT
        return cell.scan(TritonRecurrence.recurrence, weights, x_BTX, starts_BT, stored_states)
    assert isinstance(cell, AnalyticCell)
    bf16 = options.compute_dtype == torch.bfloat16
    concrete = precision.resolve("bf16" if bf16 else options.precision, x_BTI.device)
    if concrete == "bf16" and x_BTI.device.type != "cuda":
        concrete = "bf16 emulated"
    return TritonLayer(cell, concrete).sequence(x_BTI, segments, stored_states, weights)
