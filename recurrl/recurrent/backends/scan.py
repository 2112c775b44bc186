"""A loop over the steps in Python, with a hand-written derivative for GRU and LSTM.

Segments are packed (longest first, see :class:`~recurrl.recurrent.segments.Packing`): serial depth is the longest
segment, nothing is padded, and stored states are read only at segment starts. Cells without a hand-written derivative,
and an LSTM with a projection, are differentiated by autograd; under ``torch.compile`` they run through hoptorch's scan
over the steps of all rows. Cells with a parallel form need no loop.

Shape legend: B rows, T steps, P steps of all rows (B·T), N segments, R rows of memory (N + P: the initial states, then
those after each packed step), I input size, O output size, H hidden size, X size of a state or of a projected input, A
columns of the gate buffer. The split gates come first in the gate buffer and last in the weights: ``roll`` turns one
order into the other.
"""

from __future__ import annotations

import torch
from hoptorch import scan
from hoptorch.scan import scan_unavailable_reason
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.backends import Options
from recurrl.recurrent.cell import Cell, ParallelCell, States, Weights
from recurrl.recurrent.gated import AnalyticCell
from recurrl.recurrent.kernel import WEIGHTS, LayerKernel, Tensors
from recurrl.recurrent.segments import Segments, expanded

controls_matmul_precision = False


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports every cell on every device."""
    return None


def sequence(
    cell: Cell, x_BTI: Tensor, segments: Segments, stored_states: States, weights: Weights, options: Options
) -> tuple[Tensor, States]:
    """Runs one layer."""
    if isinstance(cell, ParallelCell):
        return cell.parallel(weights, cell.project(weights, x_BTI), segments.starts_BT, stored_states)
    compiling = torch.compiler.is_compiling()
    if isinstance(cell, AnalyticCell) and not cell.proj_size and not (compiling and cell.TORCH is None):
        return ScanLayer(cell).sequence(x_BTI, segments, stored_states, weights)
    if compiling and options.recompute != "none":
        raise ValueError(
            f"recompute={options.recompute} under torch.compile needs a GRU or an LSTM without a projection, or a cell "
            f"with a parallel form (got {cell.name}). Choose recompute=none, or run without torch.compile."
        )
    return (_compiled if compiling else _by_autograd)(cell, x_BTI, segments, stored_states, weights)


class ScanLayer(LayerKernel):
    """The forward and backward pass of a layer, as a loop over packed steps whose batch shrinks as segments end: the
    recurrent matmul and the cell's maths, in place.
    """

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
        for grad, initial_grad in zip(grads[-len(states) :], (grads_RH[:count], *carried_N1X), strict=True):
            if len(grad):
                grad.zero_().flatten(0, 1)[packing.starts_N] = initial_grad.reshape(count, -1)
        if len(grad_x):
            grad_x.flatten(0, 1).index_copy_(0, packing.positions_P, grad_PA[:, layer.columns] @ w_ih)
        layer.write_gradients(packing.pack(layer.x_BTI), before_PX[0], grad_PA, grads)


def _by_autograd(
    cell: Cell, x_BTI: Tensor, segments: Segments, stored: States, weights: Weights
) -> tuple[Tensor, States]:
    packing = segments.packing
    states = tuple(packing.at_starts(state) for state in stored)
    outputs, history = [], []
    for x in cell.project(weights, packing.pack(x_BTI)).split_with_sizes(packing.batch_sizes):
        output, states = cell.step(weights, x, tuple(state[: len(x)] for state in states))
        outputs.append(output)
        history.append(states)
    return packing.unpack(torch.cat(outputs)), tuple(
        packing.unpack(torch.cat(each)) for each in zip(*history, strict=True)
    )


def _compiled(cell: Cell, x_BTI: Tensor, segments: Segments, stored: States, weights: Weights) -> tuple[Tensor, States]:
    """Runs one layer by a scan over the steps of all rows, which the compiler does not unroll.

    Each step gets the weights as separate inputs, because torch's compiled scan gets some gradients wrong for weights
    that a step closes over (pytorch issue 184528).
    """
    if scan_unavailable_reason(x_BTI.device) is not None:
        device = x_BTI.device.type
        raise ValueError(
            f"ensure_scan_backward('{device}') of hoptorch.scan must be true before torch.compile traces the cell "
            f"{cell.name}. Import it from there and call it first; if it is false, run without torch.compile."
        )
    steps = x_BTI.shape[1]

    def step(states: States, step_inputs: States) -> tuple[States, States]:
        x_BX, starts_B, *rest = step_inputs
        stored, values = rest[: len(states)], rest[len(states) :]
        entering = tuple(
            torch.where(expanded(starts_B > 0, state), start, state)
            for start, state in zip(stored, states, strict=True)
        )
        output, states = cell.step(dict(zip(weights, values, strict=True)), x_BX, entering)
        # The tensors that a scan's step returns must not share memory.
        return tuple(state.clone() for state in states), tuple(each.clone() for each in (output, *states))

    # The start flags are floats, because torch 2.14's scan cannot be differentiated with booleans among its inputs.
    rows = (cell.project(weights, x_BTI), segments.starts_BT.to(x_BTI.dtype), *stored)
    repeated_weights = [weight.expand(steps, *weight.shape) for weight in weights.values()]
    inputs = (*(each.transpose(0, 1) for each in rows), *repeated_weights)
    _, (output_TBO, *after) = scan(step, tuple(state[:, 0].clone() for state in stored), inputs)
    return output_TBO.transpose(0, 1), tuple(state.transpose(0, 1) for state in after)
