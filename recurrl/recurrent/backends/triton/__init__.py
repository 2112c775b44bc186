"""Fused CUDA kernels: a whole sequence of one layer in one launch each way, or one launch per step.

triton is imported when the first layer runs, so that everything else works without it.

Shape legend: B rows, T steps, P steps of all rows (B·T), I input size, H hidden size, O output size (H, or that of the
projection), G gate rows, N lanes.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent import precision
from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.triton import table
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.gated import HandWritten, is_hand_written
from recurrl.recurrent.segments import Segments, expanded

OWN_PRODUCTS = True
_ALTERNATIVE = "Choose backend=auto, or backend=pad on a GPU and backend=scan on a CPU."


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports GRU and LSTM up to 1,024 features, on CUDA or under triton's interpreter."""
    # The name alone may be that of another cell.
    if cell.TORCH is None or cell.name not in table.CELLS:
        return (
            f"backend=triton has no kernel for cell={cell.name}, only for {' and '.join(table.CELLS)}. "
            "Choose backend=scan."
        )
    if cell.hidden_size > table.LARGEST_HIDDEN:
        return (
            f"hidden_size={cell.hidden_size} is not possible with backend=triton, whose kernels are tested "
            f"up to {table.LARGEST_HIDDEN} features: beyond, one step keeps torch's own kernels busy. {_ALTERNATIVE}"
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
    if table.architecture(capability) is None:
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
        ValueError: the dtype is not float32.
    """
    from recurrl.recurrent.backends.triton.ops import recurrent_forward

    assert is_hand_written(cell)
    if x_BTI.dtype != torch.float32:
        raise ValueError(
            f"backend=triton computes in float32, but the layer's dtype is {x_BTI.dtype}. For bfloat16 matmuls choose "
            "precision=bf16; for other dtypes choose backend=pad or backend=scan."
        )
    w_hr = weights.get("weight_hr")
    if w_hr is not None:
        x_BTI, stored_states, weights = _unprojected(x_BTI, segments, stored_states, weights, w_hr)
    differentiated = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (x_BTI, *stored_states, *weights.values())
    )
    keep = differentiated and options.recompute == "none"
    *states_PH, _ = recurrent_forward(
        keep,
        x_BTI.flatten(0, 1),
        weights["weight_ih"],
        weights["weight_hh"],
        _with_common_stride(stored_states),
        _bias(cell, weights),
        segments.starts_BT.flatten().to(torch.int8),
        *_lanes(segments),
        _precision(options, x_BTI.device),
        window_steps=options.chunk_len if options.recompute == "chunk" else 0,
    )
    output, *others = (state.unflatten(0, segments.starts_BT.shape) for state in states_PH)
    if w_hr is not None:
        output = functional.linear(output, w_hr)
    return output, tuple(segments.only_ends(state) for state in (output, *others))


def _unprojected(
    x_BTI: Tensor, segments: Segments, stored_states: States, weights: Weights, w_hr: Tensor
) -> tuple[Tensor, States, Weights]:
    """The input, the stored states and the weights of an LSTM without projection that computes the same steps.

    Its state is m, which the projection makes h = W_hr·m of, so that W_hh·h = (W_hh·W_hr)·m. So each step waits for one
    matmul; projecting within it would take two, one after the other. Stored states are h, and m is not known. But they
    are known before the loop: where one enters, it is part of the input, and m is zero.
    """
    h_BTO, c_BTH = stored_states
    entering_BTO = torch.where(expanded(segments.starts_BT, h_BTO), h_BTO, 0.0)
    folded = {
        "weight_ih": torch.cat((weights["weight_ih"], weights["weight_hh"]), 1),
        "weight_hh": weights["weight_hh"] @ w_hr,
    }
    return torch.cat((x_BTI, entering_BTO), 2), (torch.zeros_like(c_BTH), c_BTH), {**weights, **folded}


def _lanes(segments: Segments) -> tuple[Tensor, Tensor, list[int]]:
    """Each lane's first step and length, and the number of lanes per step (a single number if constant).

    A lane is a segment; sorted by length, segments keep all lanes of a program busy while it runs. Finding segments
    reads the data, which ``torch.compile`` and CUDA graphs forbid: there, a lane is a row.
    """
    starts_BT = segments.starts_BT
    if _is_tracing_or_capturing(starts_BT.device):
        rows, steps = starts_BT.shape
        begin_N = torch.arange(rows, device=starts_BT.device) * steps
        return begin_N, torch.full((rows,), steps, dtype=torch.int32, device=starts_BT.device), [rows]
    packing = segments.packing
    return packing.starts_N, (packing.ends_N - packing.starts_N + 1).int(), packing.batch_sizes


def _is_tracing_or_capturing(device: torch.device) -> bool:
    return torch.compiler.is_compiling() or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def _bias(cell: HandWritten, weights: Weights) -> Tensor | None:
    """The biases of the four pre-activations: a GRU's third gate keeps its two projections separate."""
    if "bias_ih" not in weights:
        return None
    b_ih, b_hh = weights["bias_ih"], weights["bias_hh"]
    together = len(b_ih) - cell.SPLIT_GATES * weights["weight_hh"].shape[1]
    return torch.cat((b_ih[:together] + b_hh[:together], b_ih[together:], b_hh[together:]))


def _with_common_stride(stored_states_BTH: tuple[Tensor, ...]) -> list[Tensor]:
    """Flattens to ``[P, H]`` with a common stride between steps; copies only if needed."""
    flat_PH = [stored.flatten(0, 1) for stored in stored_states_BTH]
    if {stored.stride() for stored in flat_PH} == {(flat_PH[0].stride(0), 1)}:
        return flat_PH
    return [stored.contiguous() for stored in flat_PH]
