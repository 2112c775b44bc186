"""A loop over packed steps whose batch shrinks as segments end: the recurrent matmul and the cell's maths, in place.

Shape legend: B rows, T steps, P steps of all rows (B·T), N segments, R rows of memory (N + P: the initial states, then
those after each packed step), I input size, H hidden size, X size of a state, A columns of the gate buffer.

The split gates come first in the gate buffer and last in the weights: ``roll`` turns one order into the other.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from recurrl.recurrent.kernel import WEIGHTS, LayerKernel, Tensors


class ScanLayer(LayerKernel):
    """The forward and backward pass of a layer, as a loop over packed steps."""

    def forward(self, inputs: Tensors, outputs: Tensors) -> None:
        """See :meth:`~recurrl.recurrent.kernel.Kernel.forward`."""
        layer = self.layer(inputs)
        (*states, gates_PA), w_hh = outputs, layer.weights[1]
        packing, sizes = layer.segments.packing, layer.segments.packing.batch_sizes
        gates_PA = layer.project(packing.pack(layer.x_BTI), gates_PA)
        memory_RX = [functional.pad(packing.at_starts(state), (0, 0, 0, len(gates_PA))) for state in layer.stored]
        states_of = [memory.split_with_sizes([sizes[0], *sizes]) for memory in memory_RX]
        gates_of = gates_PA.split_with_sizes(sizes)
        recurrent_of = gates_PA[:, : len(w_hh)].split_with_sizes(sizes)
        w_hh_t = w_hh.roll(layer.split, 0).t()
        for t, size in enumerate(sizes):
            before, after = [state[t][:size] for state in states_of], [state[t + 1] for state in states_of]
            recurrent_of[t].addmm_(before[0], w_hh_t)
            self.cell.forward_step(gates_of[t], before, after)
        for memory, state in zip(memory_RX, states, strict=True):
            state.flatten(0, 1).index_copy_(0, packing.positions_P, memory[sizes[0] :])

    def backward(self, inputs: Tensors, kept: Tensors, incoming: Tensors, grads: Tensors) -> None:
        """See :meth:`~recurrl.recurrent.kernel.Kernel.backward`."""
        layer = self.layer(inputs)
        (*states, gates_PA), (w_ih, w_hh, *_), segments = kept, layer.weights, layer.segments
        packing, sizes = segments.packing, segments.packing.batch_sizes
        count, w_hh = sizes[0], w_hh.roll(layer.split, 0)
        after_PX = [state.flatten(0, 1) for state in states]
        before_PX = [
            torch.cat((packing.at_starts(initial), state)).index_select(0, packing.before_P)
            for initial, state in zip(layer.stored, after_PX, strict=True)
        ]
        after_PX = [state.index_select(0, packing.positions_P) for state in after_PX]
        factors_PAH, others_P1H = self.cell.derivatives(gates_PA, before_PX, after_PX)
        grad_PA = factors_PAH.flatten(1)
        total_PH, *further_PX = (
            torch.zeros_like(state) if grad is None else packing.pack(grad)
            for state, grad in zip(after_PX, incoming, strict=True)
        )
        grads_RH = functional.pad(total_PH, (0, 0, count, 0))
        carried_N1X = [state.new_zeros(count, 1, state.shape[1]) for state in further_PX]
        grads_of = grads_RH.split_with_sizes([count, *sizes])
        further_of = [grad.unsqueeze(1).split_with_sizes(sizes) for grad in further_PX]
        factors_of = list(zip(*(each.split_with_sizes(sizes) for each in (factors_PAH, *others_P1H)), strict=True))
        recurrent_of = grad_PA[:, : len(w_hh)].split_with_sizes(sizes)
        for t in reversed(range(len(sizes))):
            before, grad = grads_of[t][: sizes[t]], grads_of[t + 1]
            further = [each[: sizes[t]].add_(of[t]) for each, of in zip(carried_N1X, further_of, strict=True)]
            self.cell.backward_step(factors_of[t], [grad.unsqueeze(1), *further], before.unsqueeze(1))
            before.addmm_(recurrent_of[t], w_hh)
        grad_x = grads[len(WEIGHTS)]
        for grad, of_initial in zip(grads[-len(states) :], (grads_RH[:count], *carried_N1X), strict=True):
            if len(grad):
                grad.zero_().flatten(0, 1)[packing.starts_N] = of_initial.reshape(count, -1)
        if len(grad_x):
            grad_x.flatten(0, 1).index_copy_(0, packing.positions_P, grad_PA[:, layer.columns] @ w_ih)
        layer.write_gradients(packing.pack(layer.x_BTI), before_PX[0], grad_PA, grads)
