"""Fused CUDA kernels: a whole sequence of one layer in one launch, forwards and backwards.

triton itself is imported when the first layer runs, so that machines without it can do everything else.

Shape legend: B rows, T steps, P steps of all rows (B·T), I input size, H hidden size, G gate rows, N lanes.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent import precision
from recurrl.recurrent.backends import LayerWeights, Options
from recurrl.recurrent.backends.triton.table import LARGEST_HIDDEN, largest_hidden
from recurrl.recurrent.cells import Cell, is_hand_written
from recurrl.recurrent.segments import Segments

OWN_PRODUCTS = True
_OTHERWISE = "Choose backend=auto, or backend=pad on a GPU and backend=scan on a CPU."
_CELLS = ("gru", "lstm")


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """GRU and LSTM without a projection or recomputation, as large as fits, on CUDA or under triton's interpreter."""
    name = cell.__name__.rpartition(".")[2]
    if name not in _CELLS:
        return f"backend=triton has no kernel for cell={name}, only for {' and '.join(_CELLS)}. Choose backend=scan."
    if options.proj_size:
        return f"proj_size={options.proj_size} is not possible with backend=triton. Choose backend=pad or backend=scan."
    if options.recompute != "none":
        return (
            f"recompute={options.recompute} is not possible with backend=triton. Choose backend=scan, or "
            "recompute=none."
        )
    if importlib.util.find_spec("triton") is None:
        return f"backend=triton needs the package triton, which is not installed here. {_OTHERWISE}"
    if device is None or (device.type != "cuda" and _interpreted()):
        return _too_large(options, LARGEST_HIDDEN, "any GPU")
    if device.type != "cuda":
        return (
            f"backend=triton needs a CUDA device, and this is device={device}. {_OTHERWISE} (For tests, "
            "TRITON_INTERPRET=1, set before python starts, runs the kernels on a CPU, slowly.)"
        )
    capability = torch.cuda.get_device_capability(device)
    largest = largest_hidden(name, _precision(options, device), capability)
    return _too_large(options, largest, f"compute capability {capability[0]}.{capability[1]} in this precision")


def _too_large(options: Options, largest: int, where: str) -> str | None:
    if options.hidden_size <= largest:
        return None
    return (
        f"hidden_size={options.hidden_size} is not possible with backend=triton, whose kernels keep the recurrent "
        f"weights on the chip: at most {largest} features on {where}. {_OTHERWISE}"
    )


def _precision(options: Options, device: torch.device) -> str:
    return "bf16" if options.compute_dtype == torch.bfloat16 else precision.resolve(options.precision, device)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def sequence(
    cell: Cell,
    x_BTI: Tensor,
    segments: Segments,
    stored_states_BTH: tuple[Tensor, ...],
    weights: LayerWeights,
    options: Options,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer by the kernels: a lane is a row while torch.compile traces, and a segment otherwise.

    Segments sorted by length keep a program's lanes busy for as long as it runs, but finding them reads the data.

    Raises:
        ValueError: the dtype is not float32.
    """
    from recurrl.recurrent.backends.triton.ops import recurrent_forward

    assert is_hand_written(cell)
    assert weights.w_hh is not None
    if x_BTI.dtype != torch.float32:
        raise ValueError(
            f"backend=triton computes in float32, and the layer's dtype is {x_BTI.dtype}. For bfloat16 products choose "
            "precision=bf16; for other dtypes backend=pad or backend=scan."
        )
    rows, steps = segments.starts_BT.shape
    if torch.compiler.is_compiling():
        begin_N = torch.arange(rows, device=x_BTI.device) * steps
        length_N = torch.full((rows,), steps, dtype=torch.int32, device=x_BTI.device)
    else:
        begin_N, ends_N = segments.packing.starts_N, segments.packing.ends_N
        length_N = (ends_N - begin_N + 1).int()
    bias = None
    if weights.b_ih is not None and weights.b_hh is not None:
        together = len(weights.b_ih) - cell.APART * weights.w_hh.shape[1]
        bias = weights.b_ih + functional.pad(weights.b_hh[:together], (0, len(weights.b_ih) - together))
    x_gates_PG = functional.linear(x_BTI, weights.w_ih, bias).flatten(0, 1)
    concrete = _precision(options, x_BTI.device)
    *states_PH, _ = recurrent_forward(
        x_gates_PG,
        weights.w_hh,
        weights.b_hh if cell.APART else None,
        segments.starts_BT.flatten().to(torch.int8),
        [stored.reshape(rows * steps, -1) for stored in _with_one_stride(stored_states_BTH)],
        begin_N,
        length_N,
        "bf16 emulated" if concrete == "bf16" and x_BTI.device.type != "cuda" else concrete,
    )
    states_BTH = [state.unflatten(0, (rows, steps)) for state in states_PH]
    return states_BTH[0], tuple(segments.only_ends(state) for state in states_BTH)


def _with_one_stride(stored_states_BTH: tuple[Tensor, ...]) -> list[Tensor]:
    # A view of one layer of several has gaps; the kernel takes one distance between steps for all states.
    return [stored.contiguous() for stored in stored_states_BTH]
