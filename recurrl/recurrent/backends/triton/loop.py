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
    """The launches of the kernels, and the matmuls around them."""

    def forward(self, inputs: Tensors, outputs: Tensors) -> None:
        """See :meth:`~recurrl.recurrent.kernel.Kernel.forward`."""
        layer, (*states, gates_PA) = self.layer(inputs), outputs
        keep = len(gates_PA) > 0
        gates_PA = layer.project(layer.x_BTI.flatten(0, 1), gates_PA)
        recurrence = Recurrence(self, layer, states)
        for steps in recurrence.launches(0):
            recurrence.run(kernels.forward, steps, recurrence.weights, (gates_PA,), KEEP=keep)

    def backward(self, inputs: Tensors, kept: Tensors, incoming: Tensors, grads: Tensors) -> None:
        """See :meth:`~recurrl.recurrent.kernel.Kernel.backward`."""
        layer, (*states, gates_PA) = self.layer(inputs), kept
        grad_x, grads_stored = grads[len(WEIGHTS)], grads[-len(states) :]
        totals = [
            torch.zeros_like(state) if grad is None else grad.contiguous()
            for state, grad in zip(states, incoming, strict=True)
        ]
        recurrence, wants_stored = Recurrence(self, layer, states), any(len(grad) > 0 for grad in grads_stored)
        if wants_stored:
            grads_stored = [grad if len(grad) else torch.empty_like(states[0]) for grad in grads_stored]
        grad_PA, entered_PH = torch.empty_like(gates_PA), gates_PA.new_empty(len(gates_PA), recurrence.hidden)
        carried_NH = gates_PA.new_zeros(recurrence.lanes, recurrence.hidden)
        weights_t = recurrence.weights.unflatten(0, (-1, recurrence.hidden)).transpose(1, 2).contiguous()
        written = (*_two(totals), grad_PA, entered_PH, carried_NH, *_two(grads_stored))
        for steps in reversed(recurrence.launches(-1 if wants_stored else 0)):
            recurrence.run(kernels.backward, steps, weights_t, (gates_PA, *written), WANTS_STORED=wants_stored)
        layer.write_gradients(layer.x_BTI.flatten(0, 1), entered_PH, grad_PA, grads)
        if len(grad_x):
            torch.mm(grad_PA[:, layer.columns], layer.weights[0], out=grad_x.flatten(0, 1))


def _two(states: Tensors) -> tuple[Tensor, Tensor]:
    """The states h and c. For a GRU, h stands in for c, which the kernels then do not read: they need some pointer."""
    return states[0], states[-1]


class Recurrence:
    """The launches of one layer over its lanes.

    A *lane* is a segment. Lanes are sorted by length, which keeps all lanes of a program busy while it runs. They are
    found on the device, so that the host does not know their number. It takes as many lanes as steps, most of them
    empty; at most P / (t + 1) are longer than t steps. A program of empty lanes returns at once.

    Attributes:
        weights: the recurrent weights, rounded to the matmul format, in the order of the gates.
    """

    def __init__(self, kernel: LayerKernel, layer: LayerInputs, states: Tensors) -> None:
        w_hh, starts_BT, precision = layer.weights[1], layer.segments.starts_BT, kernel.precision
        self.hidden = w_hh.shape[1]
        self.weights = rounded(w_hh, precision).roll(layer.split, 0).contiguous()
        self._begin_N, self._length_N = _lanes(starts_BT)
        self.lanes, self._steps = starts_BT.numel(), starts_BT.shape[1]
        stored = layer.stored
        if any(
            state.stride() != (starts_BT.shape[1] * stored[0].stride(1), stored[0].stride(1), 1) for state in stored
        ):
            stored = [state.contiguous() for state in stored]
        self._stride = stored[0].stride(1)
        self._read = (starts_BT.to(torch.int8), *_two(stored), *_two(states))
        self._tiles = tiles.configuration(self.hidden, precision.removesuffix(" emulated"))
        self._constants = self._tiles.constants(kernel.cell.name, self.hidden, precision)

    def launches(self, first: int) -> list[tuple[int, int]]:
        """The range of steps of each launch: all from ``first`` on if a program has all hidden units, else one each."""
        if self._tiles.units >= self.hidden:
            return [(first, self._steps)]
        return [(t, t + 1) for t in range(first, self._steps)]

    def run(
        self, kernel: Any, steps: tuple[int, int], weights: Tensor, memory: tuple[Tensor, ...], **constants: bool
    ) -> None:
        """Launches the programs of the lanes that may have these steps."""
        lanes = self.lanes // (max(steps[0], 0) + 1)
        grid = (-(-lanes // self._tiles.lanes), -(-self.hidden // self._tiles.units))
        of_lanes = (self._begin_N, self._length_N, *steps, self.lanes, self._stride)
        kernel[grid](weights, *self._read, *memory, *of_lanes, **self._constants, **constants)


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
