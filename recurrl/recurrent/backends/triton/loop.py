"""The forward and backward pass of one layer: kernels compute the recurrence, torch the matmuls over all steps.

Launches follow one another in dependency order.

Shape legend: B rows, T steps, P steps of all rows, N lanes, I input size, H hidden size, A columns of the gate buffer
(four blocks of H).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.backends.triton import kernels, tiles
from recurrl.recurrent.kernel import WEIGHTS, LayerInputs, LayerKernel, Tensors


class TritonLayer(LayerKernel):
    """The launches of the kernels, and the matmuls around them.

    A *lane* is a segment. Lanes are sorted by length, which keeps all lanes of a program busy while it runs. They are
    found on the device, so that the host does not know their number. It takes as many lanes as steps, most of them
    empty; at most P / (t + 1) are longer than t steps. A program of empty lanes returns at once.
    """

    def forward(self, inputs: Tensors, outputs: Tensors) -> None:
        """See :meth:`~recurrl.recurrent.kernel.Kernel.forward`."""
        layer, (*states, gates_PA) = self.layer(inputs), outputs
        keep = len(gates_PA) > 0
        gates_PA = layer.project(layer.x_BTI.flatten(0, 1), gates_PA)
        self._launch(kernels.forward, layer, self._weights(layer), states, gates_PA, KEEP=keep)

    def backward(self, inputs: Tensors, kept: Tensors, incoming: Tensors, grads: Tensors) -> None:
        """See :meth:`~recurrl.recurrent.kernel.Kernel.backward`."""
        layer, (*states, gates_PA) = self.layer(inputs), kept
        grad_x, grads_stored = grads[len(WEIGHTS)], grads[-len(states) :]
        totals = [
            torch.zeros_like(state) if grad is None else grad.contiguous()
            for state, grad in zip(states, incoming, strict=True)
        ]
        wants_stored = any(len(grad) > 0 for grad in grads_stored)
        if wants_stored:
            grads_stored = [grad if len(grad) else torch.empty_like(states[0]) for grad in grads_stored]
        hidden = states[0].shape[2]
        grad_PA, entered_PH = torch.empty_like(gates_PA), gates_PA.new_empty(len(gates_PA), hidden)
        carried_NH = torch.zeros_like(entered_PH)
        weights_t = self._weights(layer).unflatten(0, (-1, hidden)).transpose(1, 2).contiguous()
        memory = (gates_PA, *_two(totals), grad_PA, entered_PH, carried_NH, *_two(grads_stored))
        self._launch(kernels.backward, layer, weights_t, states, *memory, WANTS_STORED=wants_stored)
        layer.write_gradients(layer.x_BTI.flatten(0, 1), entered_PH, grad_PA, grads)
        if len(grad_x):
            torch.mm(grad_PA[:, layer.columns], layer.weights[0], out=grad_x.flatten(0, 1))

    def _weights(self, layer: LayerInputs) -> Tensor:
        """The recurrent weights, rounded to the matmul format, in the order of the gates."""
        return rounded(layer.weights[1], self.precision).roll(layer.split, 0).contiguous()

    def _launch(
        self, kernel: Any, layer: LayerInputs, weights: Tensor, states: Tensors, *memory: Tensor, **form: bool
    ) -> None:
        """Launches a kernel for all steps if a program has all hidden units, else for one step after the other."""
        starts_BT, stored, hidden = layer.segments.starts_BT, layer.stored, weights.shape[-1]
        (begin_N, length_N), steps = _lanes(starts_BT), starts_BT.shape[1]
        stride = stored[0].stride(1)
        if any(state.stride() != (steps * stride, stride, 1) for state in stored):
            stored, stride = [state.contiguous() for state in stored], hidden
        constants = tiles.constants(self.cell.name, hidden, self.precision) | form
        tensors = (weights, starts_BT.to(torch.int8), *_two(stored), *_two(states), *memory, begin_N, length_N)
        # A backward step t computes the gradients of the states that enter step t + 1: those of step 0 need step −1.
        first = -1 if form.get("WANTS_STORED") else 0
        launches = [(t, t + 1) for t in range(first, steps)] if hidden > constants["BH"] else [(first, steps)]
        for first, last in launches if kernel is kernels.forward else reversed(launches):
            lanes = len(begin_N) // (max(first, 0) + 1)  # those that may have these steps
            grid = (-(-lanes // constants["BM"]), -(-hidden // constants["BH"]))
            kernel[grid](*tensors, first, last, len(begin_N), stride, **constants)


def _two(states: Tensors) -> tuple[Tensor, Tensor]:
    """The states h and c. For a GRU, h stands in for c, which the kernels then do not read: they need some pointer."""
    return states[0], states[-1]


def _lanes(starts_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Each lane's first step and length, longest lane first; as many as there are steps, most of length 0."""
    starts_P = starts_BT.flatten()
    step_P = torch.arange(len(starts_P), device=starts_P.device)
    next_P = torch.where(starts_P, step_P, len(starts_P)).flip(0).cummin(0).values.flip(0)
    after_P = functional.pad(next_P[1:], (0, 1), value=len(starts_P))
    length_N, begin_N = torch.where(starts_P, after_P - step_P, 0).sort(descending=True, stable=True)
    return begin_N, length_N.int()


def rounded(weight: Tensor, precision: str) -> Tensor:
    """Rounds a matmul operand to the nearest value of its format, as the kernels round the others."""
    if precision == "bf16":
        return weight.bfloat16()
    if precision == "bf16 emulated":
        return weight.bfloat16().float()
    if precision == "tf32":
        # tf32 keeps 10 of 23 bits of mantissa: add half a unit of the last kept bit, then truncate.
        bits = (weight.view(torch.int32) + 0x1000) & -0x2000
        return torch.where(weight.isnan(), weight, bits.view(torch.float32))
    return weight
