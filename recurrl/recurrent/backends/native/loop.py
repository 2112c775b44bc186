"""The kernel's loop over the steps of one layer, in row order.

Shape legend: B rows, T steps, P steps of all rows (B·T), H hidden size, A columns that memory is kept for.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from recurrl.recurrent.backends.native import library
from recurrl.recurrent.operators import Layer
from recurrl.recurrent.segments import Segments

_COLUMNS = 4  # A / H, of either cell
# Fewer multiplications take less time than starting a thread.
_WORK_OF_A_THREAD = 4 << 20
_States = ctypes.c_void_p * 2


class _Layer(ctypes.Structure):
    """The kernel's ``Layer``."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("rows", "steps", "hidden")),
        *((name, ctypes.c_void_p) for name in ("w_hh", "b_hh", "starts")),
        ("stored", _States),
        *((name, ctypes.c_long) for name in ("stored_row", "stored_step")),
        *((name, _States) for name in ("states", "ends")),
        *((name, ctypes.c_void_p) for name in ("gates", "grad_output")),
        ("grad_ends", _States),
        *((name, ctypes.c_void_p) for name in ("grad_gates", "entered")),
        ("grad_stored", _States),
        ("panels", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("begin", "end")),
    )


def order(segments: Segments) -> None:
    """The rows' own."""


def forward(layer: Layer, ends: list[Tensor], states: list[Tensor], gates_PA: Tensor) -> None:
    """As :meth:`~recurrl.recurrent.operators.Loop.forward`."""
    _run("forward", layer, ends=ends, states=states, gates=gates_PA)


def backward(
    layer: Layer,
    states: list[Tensor],
    gates_PA: Tensor,
    grads: list[Tensor | None],
    grad_stored: list[Tensor],
    overwrite: bool,
) -> tuple[Tensor, Tensor, None]:
    """As :meth:`~recurrl.recurrent.operators.Loop.backward`; overwriting saves as much memory as the gates take."""
    grad_PA = gates_PA if overwrite else torch.empty_like(gates_PA)
    entered_PH = gates_PA.new_empty(len(gates_PA), layer.weights[1].shape[1])
    grad_output, *grad_ends = [None if grad is None else grad.contiguous() for grad in grads]
    outgoing = {"grad_gates": grad_PA, "entered": entered_PH, "grad_stored": grad_stored}
    known = {"states": list(states), "gates": gates_PA}
    _run("backward", layer, **known, grad_output=grad_output, grad_ends=grad_ends, **outgoing)
    return grad_PA, entered_PH, None


def _run(direction: str, layer: Layer, **memory: Any) -> None:
    """Runs the kernel forwards or backwards on a layer's memory.

    Raises:
        ValueError: a stored state does not have the layer's size; the kernel would read beyond it.
    """
    (_, w_hh, _, b_hh, _), starts_BT = layer.weights, layer.segments.starts_BT
    rows, steps, hidden = *starts_BT.shape, w_hh.shape[1]
    stored = [state.to(w_hh) for state in layer.stored]
    for state in (*memory["states"], *stored):
        if state.shape != (rows, steps, hidden):
            raise ValueError(f"backend=native needs states [{rows}, {steps}, {hidden}]; there is {list(state.shape)}.")
    if len({state.stride() for state in stored}) > 1 or stored[0].stride(2) != 1:
        stored = [state.contiguous() for state in stored]
    w_hh, starts_BT = w_hh.contiguous(), starts_BT.bool().contiguous()
    b_hh = None if b_hh is None else b_hh.contiguous()
    given = _Layer(rows, steps, hidden)
    given.stored_row, given.stored_step, _ = stored[0].stride()
    for name, value in {"w_hh": w_hh, "b_hh": b_hh, "starts": starts_BT, "stored": stored, **memory}.items():
        found = tuple(map(_pointer, value)) if isinstance(value, list) else _pointer(value)
        setattr(given, name, found)
    threads = max(1, min(torch.get_num_threads(), rows * steps * _COLUMNS * hidden**2 // _WORK_OF_A_THREAD))
    kernel = library.kernel(w_hh.dtype)
    if isinstance(kernel, str):
        raise RuntimeError(kernel)
    if getattr(kernel, direction)(library.CELLS.index(layer.cell.name), ctypes.c_long(threads), ctypes.byref(given)):
        raise MemoryError("backend=native: no memory for the recurrent layer's working space.")


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
