"""Runs one layer by the kernels, in row order.

Shape legend: B rows, T steps, P steps of all rows (B·T), I input size, H hidden size, A columns kept for each step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.native import library
from recurrl.recurrent.backends.native.recurrence import memories, recurrence
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.gated import AnalyticCell
from recurrl.recurrent.linear import LinearCell
from recurrl.recurrent.matrix import MatrixCell
from recurrl.recurrent.operators import WEIGHTS, LayerCall, run_layer
from recurrl.recurrent.segments import Segments

_COLUMNS = 4  # A / H, of either cell
# Fewer multiplications take less time than starting a thread.
_WORK_OF_A_THREAD = 16 << 20
_WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh")
DTYPES = (torch.float32, torch.float64)
"""The dtypes that the kernel computes in."""
NOT_COMPILED = (
    "backend=native under torch.compile needs gru, lstm or a linear cell, and the state of this one is a matrix. "
    "Choose backend=scan, or run without torch.compile."
)


def _pair(name: str) -> list[tuple[str, type]]:
    """A field that is an array of two pointers, one for each state a cell may have."""
    return [(f"{name}_{k}", ctypes.c_void_p) for k in range(2)]


class _Layer(ctypes.Structure):
    """The kernel's ``Layer``."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("rows", "steps", "inputs", "hidden", "stored_row", "stored_step")),
        *((name, ctypes.c_void_p) for name in ("x", *_WEIGHTS, "starts")),
        *(field for name in ("stored", "states") for field in _pair(name)),
        ("gates", ctypes.c_void_p),
        *_pair("ends"),
        ("grad_output", ctypes.c_void_p),
        *_pair("grad_ends"),
        *((f"grad_{name}", ctypes.c_void_p) for name in ("x", *_WEIGHTS)),
        *_pair("grad_stored"),
        *_pair("packed"),
        ("sums", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("begin", "end")),
    )


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
        return run_layer("native", cell, x_BTI, segments, stored_states, weights, keep=options.recompute == "none")
    x_BTX, starts_BT = cell.project(weights, x_BTI), segments.starts_BT
    if isinstance(cell, LinearCell):
        output_BTO, states = cell.scan(recurrence, weights, x_BTX, starts_BT, stored_states)
    elif torch.compiler.is_compiling():
        raise ValueError(NOT_COMPILED)
    else:
        assert isinstance(cell, MatrixCell)
        output_BTO, states = cell.scan(memories, weights, x_BTX, starts_BT, stored_states)
    return output_BTO, tuple(segments.only_ends(state) for state in states)


def forward(call: LayerCall, ends: list[Tensor], kept: list[Tensor]) -> None:
    """See :meth:`~recurrl.recurrent.operators.Loop.forward`."""
    _run("forward", call, kept, *_two(ends))


def backward(call: LayerCall, kept: list[Tensor], incoming: list[Tensor | None], grads: list[Tensor]) -> None:
    """See :meth:`~recurrl.recurrent.operators.Loop.backward`."""
    grad_output, *grad_ends = incoming
    of_stored = grads[1 + len(WEIGHTS) :]
    memory = None, None, grad_output, *_two(grad_ends), *grads[: 1 + len(WEIGHTS)], *_two(of_stored)
    _run("backward", call, kept, *memory)


def _run(direction: str, call: LayerCall, kept: list[Tensor], *memory: Tensor | None) -> None:
    """Runs the kernel forwards or backwards on a layer's memory.

    Args:
        direction: ``forward`` or ``backward``.
        call: the layer and its input.
        kept: the states after every step, and the gates.
        memory: what follows ``gates`` in the kernel's ``Layer``.

    Raises:
        ValueError: the input, a weight or a state differs in size or dtype from the others; the kernel would read
            beyond it.
    """
    dtype, (rows, steps, inputs), (columns, hidden) = call.x_BTI.dtype, call.x_BTI.shape, call.weights[1].shape
    if call.weights[0].shape != (columns, inputs):
        raise ValueError(f"The layer's inputs have {call.weights[0].shape[1]} features; these have {inputs}.")
    for weight in call.weights:
        if weight is not None and weight.dtype != dtype:
            raise ValueError(f"The layer's weights are {weight.dtype}, but its input is {dtype}.")
    stored = [state.to(call.x_BTI) for state in call.stored]
    for state in stored:
        if state.shape != (rows, steps, hidden):
            raise ValueError(f"backend=native needs states [{rows}, {steps}, {hidden}]; there is {list(state.shape)}.")
    if stored[0].stride() != stored[-1].stride() or stored[0].stride(2) != 1:
        stored = [state.contiguous() for state in stored]
    # The list keeps the copies alive until the kernel has run.
    inputs_and_starts = (call.x_BTI, *call.weights, call.segments.is_init_BT.bool())
    read = [None if each is None else each.contiguous() for each in (*inputs_and_starts, *memory)]
    count = len(inputs_and_starts)
    arrays = (*read[:count], *_two(stored), *_two(kept[:-1]), kept[-1], *read[count:])
    pointers = [None if each is None else each.data_ptr() for each in arrays]
    kernel_layer = _Layer(rows, steps, inputs, hidden, *stored[0].stride()[:2], *pointers)
    work = rows * steps * _COLUMNS * hidden * (inputs + hidden)
    threads = max(1, min(torch.get_num_threads(), work // _WORK_OF_A_THREAD))
    kernel = library.kernel(dtype)
    if isinstance(kernel, str):
        raise RuntimeError(kernel)
    cell = ctypes.c_int(call.cell.TORCH is nn.LSTM)
    if getattr(kernel, direction)(cell, ctypes.c_long(threads), ctypes.byref(kernel_layer)):
        raise MemoryError("backend=native: no memory for the recurrent layer's working space.")


def _two(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The tensors of a cell's one or two states as two, the second None if there is one."""
    return (*tensors, None)[:2]
