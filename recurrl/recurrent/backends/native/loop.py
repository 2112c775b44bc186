"""Runs GRU and LSTM by ``kernel.c``, in row order.

Shape legend: B rows, T steps, I input size, H hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from recurrl.recurrent.backends.native import library
from recurrl.recurrent.kernel import LayerKernel, Tensors

_COLUMNS = 4  # A / H: blocks of the gate buffer, for a GRU and for an LSTM
# Fewer multiplications take less time than starting a thread.
_WORK_OF_A_THREAD = 16 << 20


class NativeLayer(LayerKernel):
    """The forward and backward pass of a GRU or LSTM layer, in C."""

    def forward(self, inputs: Tensors, outputs: Tensors) -> None:
        """See :meth:`~recurrl.recurrent.kernel.Kernel.forward`."""
        self._run("forward", inputs, outputs)

    def backward(self, inputs: Tensors, kept: Tensors, incoming: Tensors, grads: Tensors) -> None:
        """See :meth:`~recurrl.recurrent.kernel.Kernel.backward`."""
        *of_weights_and_x, _ = grads[:6]
        self._run("backward", inputs, kept, *_two(incoming), *of_weights_and_x, *_two(grads[6:]))

    def _run(self, direction: str, inputs: Tensors, kept: Tensors, *memory: Any) -> None:
        """Runs the kernel on a layer's memory.

        Args:
            direction: ``forward`` or ``backward``.
            inputs: the weights, the input, the starts and the stored states.
            kept: the states after every step, and the gates.
            memory: the fields that follow ``gates`` in the C struct ``Layer``.

        Raises:
            ValueError: the input, a weight or a state differs in size or dtype from the others; the kernel would read
                out of bounds.
        """
        *weights, x_BTI, is_init_BT = inputs[:6]
        (rows, steps, features), (columns, hidden) = x_BTI.shape, weights[1].shape
        if weights[0].shape != (columns, features):
            raise ValueError(f"The layer's inputs have {weights[0].shape[1]} features; these have {features}.")
        for weight in weights:
            if weight is not None and weight.dtype != x_BTI.dtype:
                raise ValueError(f"The layer's weights are {weight.dtype}, but its input is {x_BTI.dtype}.")
        stored = [state.to(x_BTI) for state in inputs[6:]]
        for state in stored:
            if state.shape != (rows, steps, hidden):
                raise ValueError(
                    f"backend=native needs states [{rows}, {steps}, {hidden}]; there is {list(state.shape)}."
                )
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
