"""A loop over the steps in Python, with a hand-written derivative for GRU and LSTM.

Segments are packed (longest first, see :class:`~recurrl.recurrent.segments.Packing`): serial depth is the longest
segment, nothing is padded, and stored states are read only at segment starts. Cells without a hand-written derivative,
and an LSTM with a projection, are differentiated by autograd; under ``torch.compile`` they run through hoptorch's scan
over the steps of all rows. Cells with a parallel form need no loop.

Shape legend: B rows, T steps, I input size, O output size, X size of a projected input.
"""

from __future__ import annotations

import torch
from hoptorch import scan
from hoptorch.scan import scan_unavailable_reason
from torch import Tensor

from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.scan.loop import ScanLayer
from recurrl.recurrent.cell import Cell, ParallelCell, States, Weights
from recurrl.recurrent.gated import AnalyticCell
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
            f"hoptorch.scan.ensure_scan_backward('{device}') must be true before torch.compile traces the cell "
            f"{cell.name}. Call it first; if it is false, run without torch.compile."
        )
    steps = x_BTI.shape[1]

    def step(states: States, of_step: States) -> tuple[States, States]:
        x_BX, starts_B, *rest = of_step
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
    weights_of_steps = [weight.expand(steps, *weight.shape) for weight in weights.values()]
    of_steps = (*(each.transpose(0, 1) for each in rows), *weights_of_steps)
    _, (output_TBO, *after) = scan(step, tuple(state[:, 0].clone() for state in stored), of_steps)
    return output_TBO.transpose(0, 1), tuple(state.transpose(0, 1) for state in after)
