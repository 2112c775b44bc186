"""Runs linear recurrences and matrix memories by ``recurrence.c``: one pass over the steps, and one back.

Shape legend: B rows, T steps, N heads, K key size, V value size; any further dimensions are a state's.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from recurrl.recurrent.backends.native import library
from recurrl.recurrent.kernel import Kernel, RecurrenceKernel, Tensors
from recurrl.recurrent.matrix import MemoryInputs


class NativeRecurrence(RecurrenceKernel):
    """The forward and backward pass of a linear recurrence, in C."""

    def launch(self, direction: str, states: Tensor, strides: tuple[int, ...], *tensors: Tensor) -> None:
        """See :meth:`~recurrl.recurrent.kernel.RecurrenceKernel.launch`."""
        rows, steps, *shape = states.shape
        sizes, work = (rows, steps, self.planes, prod(shape) // self.planes), states.new_empty(shape)
        library.run(f"recurrence_{direction}", states.dtype, *sizes, *strides, work, states, *tensors)


def memories(inputs: MemoryInputs, starts_BT: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
    """What the queries read ``[B, T, N, V]``, and the memories after each step ``[B, T, N, K, V]``.

    The recurrence is that of :class:`~recurrl.recurrent.matrix.MatrixCell`; differentiable once.
    """
    read, states = NativeMemories().run(*inputs, starts_BT, stored)
    return read, states


class NativeMemories(Kernel):
    """The forward and backward pass of matrix memories, in C.

    The inputs are those of :class:`~recurrl.recurrent.matrix.MemoryInputs`, the starts and the stored memories. The
    outputs are what the queries read, and the memories after each step.
    """

    DIFFERENTIATED, results = len(MemoryInputs._fields), 2

    def outputs(self, inputs: Tensors, keep: bool) -> list[Tensor]:
        """Allocates the outputs."""
        _, key, value, *_ = inputs
        return [value.new_empty(value.shape), value.new_empty(*key.shape, value.shape[-1])]

    def forward(self, inputs: Tensors, outputs: Tensors) -> None:
        """See :meth:`~recurrl.recurrent.kernel.Kernel.forward`."""
        read, states = outputs
        self._run("forward", inputs, states, read)

    def backward(self, inputs: Tensors, kept: Tensors, incoming: Tensors, grads: Tensors) -> None:
        """See :meth:`~recurrl.recurrent.kernel.Kernel.backward`."""
        (_, states), (grad_read, grad_states), (*of_inputs, _, grad_stored) = kept, incoming, grads
        grad_read = torch.zeros_like(inputs[2]) if grad_read is None else grad_read
        self._run("backward", inputs, states, None, grad_read, grad_states, *of_inputs, grad_stored)

    def _run(self, direction: str, inputs: Tensors, states: Tensor, *memory: Tensor | None) -> None:
        *memory_inputs, starts_BT, stored = inputs
        if stored.shape != states.shape:
            raise ValueError(f"backend=native needs states {list(states.shape)}; there is {list(stored.shape)}.")
        stored = stored.to(states)
        stored = stored if stored[0, 0].is_contiguous() else stored.contiguous()
        _, _, _, keys, values = states.shape
        work = states.new_empty((keys + 3) * values)
        tensors = [None if each is None else each.contiguous() for each in (*memory_inputs, starts_BT.bool(), *memory)]
        library.run(
            f"memories_{direction}", states.dtype, *states.shape, *stored.stride()[:2], work, stored, states, *tensors
        )
