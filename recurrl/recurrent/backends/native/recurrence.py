"""Runs linear recurrences and memories by the kernel, ``recurrence.c``: one pass over the steps, and one back.

Shape legend: B rows, T steps, N heads, K key size, V value size; any further dimensions are a state's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from recurrl.recurrent import linear_operators
from recurrl.recurrent.backends.native import library
from recurrl.recurrent.linear_operators import RecurrenceCall
from recurrl.recurrent.matrix import Access
from recurrl.recurrent.operators import reject_second_derivative

_SIZES = ("rows", "steps", "planes", "width", "repeat", "a_row", "a_step", "stored_row", "stored_step")
_ARRAYS = ("a", "b", "stored", "starts", "states", "grad", "grad_a", "grad_b", "grad_stored", "carried")


class _Recurrence(ctypes.Structure):
    """The kernel's ``Recurrence``."""

    _fields_ = (*((name, ctypes.c_long) for name in _SIZES), *((name, ctypes.c_void_p) for name in _ARRAYS))


def recurrence(a: Tensor, b: Tensor, starts_BT: Tensor, stored: Tensor, pair: int | None) -> Tensor:
    """As :func:`~recurrl.recurrent.linear_recurrence.linear_recurrence`, by the kernel; differentiable once."""
    shape, entries = b.shape[2:], a.shape[a.ndim - b.ndim + 2 :]
    # Of a's last dimensions, the kernel repeats those of size one.
    kept = len(entries)
    while kept and entries[kept - 1] == 1:
        kept -= 1
    if entries[:kept] != shape[:kept]:
        kept = len(shape)
    a = a.expand(*b.shape[: 2 + kept], *[1] * (len(shape) - kept))
    return linear_operators.recurrence("native", a, b, starts_BT, stored, pair is not None)


def forward(call: RecurrenceCall, b: Tensor) -> None:
    """See :meth:`~recurrl.recurrent.linear_operators.Kernels.forward`."""
    _run("forward", call, b, [None] * 5)


def backward(call: RecurrenceCall, grad: Tensor, grads: list[Tensor]) -> None:
    """See :meth:`~recurrl.recurrent.linear_operators.Kernels.backward`."""
    _run("backward", call, None, [grad, *grads, grad.new_empty(call.states.shape[2:])])


def _run(direction: str, call: RecurrenceCall, b: Tensor | None, memory: Sequence[Tensor | None]) -> None:
    states = call.states
    (rows, steps), size, planes = states.shape[:2], prod(states.shape[2:]), 2 if call.pairs else 1
    sizes = (rows, steps, planes, size // planes, size // prod(call.a.shape[2:]), *call.strides)
    arrays = (call.a, b, call.stored, call.starts_BT, states, *memory)
    kernel = library.kernel(states.dtype)
    if isinstance(kernel, str):
        raise RuntimeError(kernel)
    pointers = [None if each is None or not each.numel() else each.data_ptr() for each in arrays]
    getattr(kernel, f"recurrence_{direction}")(ctypes.byref(_Recurrence(*sizes, *pointers)))


_MEMORY_SIZES = ("rows", "steps", "heads", "keys", "values", "stored_row", "stored_step")
_ACCESS = ("query", "key", "value", "keep", "correct")
_MEMORY_ARRAYS = (*_ACCESS, "stored", "starts", "states", "read", "grad_read", "grad_states")
_MEMORY_GRADS = (*(f"grad_{name}" for name in _ACCESS), "grad_stored", "work")


class _Memories(ctypes.Structure):
    """The kernel's ``Memories``."""

    _fields_ = (
        *((name, ctypes.c_long) for name in _MEMORY_SIZES),
        *((name, ctypes.c_void_p) for name in (*_MEMORY_ARRAYS, *_MEMORY_GRADS)),
    )


def memories(access: Access, starts_BT: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
    """What the queries read ``[B, T, N, V]``, and the memories after each step ``[B, T, N, K, V]``.

    The recurrence is that of :class:`~recurrl.recurrent.matrix.MatrixCell`; differentiable once.
    """
    return _DifferentiableMemories.apply(*access, starts_BT, stored)  # type: ignore[no-untyped-call]


def _run_memories(direction: str, access: list[Tensor | None], starts_BT: Tensor, stored: Tensor, *others: Any) -> None:
    keep, states, size = access[3], others[0], prod(stored.shape[2:])
    assert keep is not None
    if stored.shape != states.shape:
        raise ValueError(f"backend=native needs states {list(states.shape)}; there is {list(stored.shape)}.")
    stored = stored.to(states)
    stored = stored if stored[0, 0].is_contiguous() else stored.contiguous()
    arrays = (*access, stored, starts_BT.bool().contiguous(), *others, states.new_empty(size + 3 * stored.shape[-1]))
    kernel = library.kernel(states.dtype)
    if isinstance(kernel, str):
        raise RuntimeError(kernel)
    pointers = [None if each is None else each.data_ptr() for each in arrays]
    if direction == "forward":  # the work space is last
        pointers[-1:] = [*[None] * 8, pointers[-1]]
    getattr(kernel, f"memories_{direction}")(ctypes.byref(_Memories(*states.shape, *stored.stride()[:2], *pointers)))


class _DifferentiableMemories(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        *access, starts_BT, stored = inputs
        access = [None if each is None else each.contiguous() for each in access]
        value = access[2]
        states = value.new_empty(*value.shape[:3], access[1].shape[-1], value.shape[-1])
        read = torch.empty_like(value)
        _run_memories("forward", access, starts_BT, stored, states, read)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*access, starts_BT, stored, states)
        return read, states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        reject_second_derivative("native")
        *access, starts_BT, stored, states = ctx.saved_tensors
        grad_read = states.new_zeros(access[2].shape) if grads[0] is None else grads[0].contiguous()
        grad_states = None if grads[1] is None else grads[1].contiguous()
        grads_of_access = [None if each is None else torch.empty_like(each) for each in access]
        grad_stored = states.new_empty(stored.shape) if ctx.needs_input_grad[-1] else None
        memory = grad_read, grad_states, *grads_of_access, grad_stored
        _run_memories("backward", access, starts_BT, stored, states, None, *memory)
        return *grads_of_access, None, grad_stored
