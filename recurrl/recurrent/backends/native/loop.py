"""Runs one layer by the kernel, in row order.

Shape legend: B rows, T steps, P steps of all rows (B·T), I input size, H hidden size, A columns kept for each step.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from recurrl.recurrent.backends.native import library
from recurrl.recurrent.operators import Layer

_COLUMNS = 4  # A / H, of either cell
# Fewer multiplications take less time than starting a thread.
_WORK_OF_A_THREAD = 16 << 20
_WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh")
_States = ctypes.c_void_p * 2


class _Layer(ctypes.Structure):
    """The kernel's ``Layer``."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("rows", "steps", "inputs", "hidden")),
        *((name, ctypes.c_void_p) for name in ("x", *_WEIGHTS, "starts")),
        ("stored", _States),
        *((name, ctypes.c_long) for name in ("stored_row", "stored_step")),
        *((name, _States) for name in ("states", "ends")),
        *((name, ctypes.c_void_p) for name in ("gates", "grad_output")),
        ("grad_ends", _States),
        ("grad_x", ctypes.c_void_p),
        ("grad_stored", _States),
        *((f"grad_{name}", ctypes.c_void_p) for name in _WEIGHTS),
        ("packed", ctypes.c_void_p * 2),
        ("sums", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("begin", "end")),
    )


def forward(layer: Layer, x_BTI: Tensor, ends: list[Tensor], states: list[Tensor], gates_PA: Tensor) -> None:
    """As :meth:`~recurrl.recurrent.operators.Loop.forward`."""
    _run("forward", layer, x_BTI, ends=ends, states=states, gates=gates_PA)


def backward(
    layer: Layer,
    x_BTI: Tensor,
    states: list[Tensor],
    gates_PA: Tensor,
    incoming: list[Tensor | None],
    grads: list[Tensor],
) -> None:
    """As :meth:`~recurrl.recurrent.operators.Loop.backward`."""
    grad_output, *grad_ends = [None if grad is None else grad.contiguous() for grad in incoming]
    known = {"states": list(states), "gates": gates_PA, "grad_output": grad_output, "grad_ends": grad_ends}
    outgoing = {f"grad_{name}": grad for name, grad in zip(("x", *_WEIGHTS), grads, strict=False)}
    _run("backward", layer, x_BTI, **known, **outgoing, grad_stored=grads[-len(states) :])


def _run(direction: str, layer: Layer, x_BTI: Tensor, **memory: Any) -> None:
    """Runs the kernel forwards or backwards on a layer's memory.

    Raises:
        ValueError: the input, a weight or a state differs in size or dtype from the others; the kernel would read
            beyond it.
    """
    contiguous = [None if weight is None else weight.contiguous() for weight in layer.weights]
    weights = dict(zip(_WEIGHTS, contiguous, strict=False))
    starts_BT, (columns, hidden) = layer.segments.starts_BT.bool().contiguous(), layer.weights[1].shape
    rows, steps, inputs = x_BTI.shape
    if layer.weights[0].shape != (columns, inputs):
        raise ValueError(f"The layer's inputs have {layer.weights[0].shape[1]} features; these have {inputs}.")
    for weight in layer.weights:
        if weight is not None and weight.dtype != x_BTI.dtype:
            raise ValueError(f"The layer's weights are {weight.dtype}, but its input is {x_BTI.dtype}.")
    stored = [state.to(x_BTI) for state in layer.stored]
    for state in (*memory["states"], *stored):
        if state.shape != (rows, steps, hidden):
            raise ValueError(f"backend=native needs states [{rows}, {steps}, {hidden}]; there is {list(state.shape)}.")
    if len({state.stride() for state in stored}) > 1 or stored[0].stride(2) != 1:
        stored = [state.contiguous() for state in stored]
    x_BTI = x_BTI.contiguous()
    given = _Layer(rows, steps, inputs, hidden)
    given.stored_row, given.stored_step, _ = stored[0].stride()
    for name, value in {"x": x_BTI, **weights, "starts": starts_BT, "stored": stored, **memory}.items():
        found = tuple(map(_pointer, value)) if isinstance(value, list) else _pointer(value)
        setattr(given, name, found)
    work = rows * steps * _COLUMNS * hidden * (inputs + hidden)
    threads = max(1, min(torch.get_num_threads(), work // _WORK_OF_A_THREAD))
    kernel = library.kernel(x_BTI.dtype)
    if isinstance(kernel, str):
        raise RuntimeError(kernel)
    if getattr(kernel, direction)(library.CELLS.index(layer.cell.name), ctypes.c_long(threads), ctypes.byref(given)):
        raise MemoryError("backend=native: no memory for the recurrent layer's working space.")


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
