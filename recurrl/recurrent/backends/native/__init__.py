"""Loops in C for the CPU, which the system's compiler builds the first time a machine needs them.

``kernel.c`` runs GRU and LSTM, ``recurrence.c`` the states of linear and matrix cells: one pass over the steps, and one
back. Rows are read in place: nothing is packed or padded, and stored states are read at segment starts only.

Shape legend: B rows, T steps, I input size, H hidden size, X size of a projected input, N heads, K key size, V value
size.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from recurrl.recurrent.backends import Options, missing_kernel_reason
from recurrl.recurrent.backends.native import library
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.gated import AnalyticCell
from recurrl.recurrent.kernel import Kernel, LayerKernel, RecurrenceKernel, Tensors, contiguous_steps
from recurrl.recurrent.linear import LinearCell
from recurrl.recurrent.matrix import MatrixCell, MemoryInputs
from recurrl.recurrent.segments import Segments

controls_matmul_precision = False
DTYPES = (torch.float32, torch.float64)
"""The dtypes that the kernel computes in."""
_COLUMNS = 4  # A / H: blocks of the gate buffer, for a GRU and for an LSTM
# Fewer multiplications take less time than starting a thread.
_WORK_OF_A_THREAD = 16 << 20


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports GRU, LSTM without a projection, linear and matrix cells, on a CPU with a C compiler."""
    if reason := missing_kernel_reason("native", cell, LinearCell | MatrixCell):
        return reason
    if device is not None and device.type != "cpu":
        return f"backend=native needs device=cpu, and this is device={device}. Choose backend=auto."
    return library.unavailable_reason()


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
        return NativeLayer(cell).sequence(x_BTI, segments, stored_states, weights)
    x_BTX, starts_BT = cell.project(weights, x_BTI), segments.starts_BT
    if isinstance(cell, LinearCell):
        return cell.scan(NativeRecurrence.recurrence, weights, x_BTX, starts_BT, stored_states)
    assert isinstance(cell, MatrixCell)
    return cell.scan(NativeMemories.memories, weights, x_BTX, starts_BT, stored_states)


class NativeLayer(LayerKernel):
    """The forward and backward pass of a GRU or LSTM layer, in C."""

    def forward(self, inputs: Tensors, outputs: Tensors) -> None:
        """See :meth:`~recurrl.recurrent.kernel.Kernel.forward`."""
        self._run("forward", inputs, outputs)

    def backward(self, inputs: Tensors, kept: Tensors, incoming: Tensors, grads: Tensors) -> None:
        """See :meth:`~recurrl.recurrent.kernel.Kernel.backward`."""
        *weight_and_x_grads, _ = grads[:6]
        self._run("backward", inputs, kept, *_two(incoming), *weight_and_x_grads, *_two(grads[6:]))

    def _run(self, direction: str, inputs: Tensors, kept: Tensors, *memory: Any) -> None:
        """Runs the kernel on a layer's memory.

        Args:
            direction: ``forward`` or ``backward``.
            inputs: the weights, the input, the starts and the stored states.
            kept: the states after every step, and the gates.
            memory: the fields that follow ``gates`` in the C struct ``Layer``.

        Raises:
            ValueError: the input differs in size or dtype from the weights; the kernel would read out of bounds.
        """
        *weights, x_BTI, is_init_BT = inputs[:6]
        (rows, steps, features), (columns, hidden) = x_BTI.shape, weights[1].shape
        if weights[0].shape != (columns, features):
            raise ValueError(f"The layer's inputs have {weights[0].shape[1]} features; these have {features}.")
        for weight in weights:
            if weight is not None and weight.dtype != x_BTI.dtype:
                raise ValueError(f"The layer's weights are {weight.dtype}, but its input is {x_BTI.dtype}.")
        stored = [state.to(x_BTI) for state in inputs[6:]]
        if stored[0].stride() != stored[-1].stride() or stored[0].stride(2) != 1:
            stored = [state.contiguous() for state in stored]
        work = rows * steps * _COLUMNS * hidden * (features + hidden)
        threads = max(1, min(torch.get_num_threads(), work // _WORK_OF_A_THREAD))
        sizes = (self.cell.TORCH is nn.LSTM, threads, rows, steps, features, hidden, *stored[0].stride()[:2])
        read = [None if each is None else each.contiguous() for each in (*weights, x_BTI, is_init_BT.bool(), *memory)]
        tensors = (*read[:6], *_two(stored), *_two(kept[:-1]), kept[-1], *read[6:])
        library.run(direction, x_BTI.dtype, *sizes, *tensors)


def _two(tensors: Tensors) -> Tensors:
    """The tensors of a cell's one or two states as a pair, whose second entry is None for a cell with one state."""
    return (*tensors, None)[:2]


class NativeRecurrence(RecurrenceKernel):
    """The forward and backward pass of a linear recurrence, in C."""

    def launch(self, direction: str, states: Tensor, strides: tuple[int, ...], *tensors: Tensor) -> None:
        """See :meth:`~recurrl.recurrent.kernel.RecurrenceKernel.launch`."""
        rows, steps, *shape = states.shape
        sizes, work = (rows, steps, self.planes, prod(shape) // self.planes), states.new_empty(shape)
        library.run(f"recurrence_{direction}", states.dtype, *sizes, *strides, work, states, *tensors)


class NativeMemories(Kernel):
    """The forward and backward pass of matrix memories, in C.

    The inputs are those of :class:`~recurrl.recurrent.matrix.MemoryInputs`, the starts and the stored memories. The
    outputs are what the queries read, and the memories after each step.
    """

    DIFFERENTIATED, results = len(MemoryInputs._fields), 2

    @classmethod
    def memories(cls, inputs: MemoryInputs, starts_BT: Tensor, stored: Tensor) -> tuple[Tensor, ...]:
        """Computes :data:`~recurrl.recurrent.matrix.Memories`; differentiable once."""
        return cls().run(*inputs, starts_BT, stored)

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
        (_, states), (grad_read, grad_states), (*input_grads, _, grad_stored) = kept, incoming, grads
        grad_read = torch.zeros_like(inputs[2]) if grad_read is None else grad_read
        self._run("backward", inputs, states, None, grad_read, grad_states, *input_grads, grad_stored)

    def _run(self, direction: str, inputs: Tensors, states: Tensor, *memory: Tensor | None) -> None:
        *memory_inputs, starts_BT, stored = inputs
        stored = contiguous_steps(stored, states)
        _, _, _, keys, values = states.shape
        work = states.new_empty((keys + 3) * values)
        tensors = [None if each is None else each.contiguous() for each in (*memory_inputs, starts_BT.bool(), *memory)]
        library.run(
            f"memories_{direction}", states.dtype, *states.shape, *stored.stride()[:2], work, stored, states, *tensors
        )
