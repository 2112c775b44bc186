"""A loop over the steps in Python, with a hand-written derivative for GRU and LSTM.

Segments are packed (longest first, see :class:`~recurrl.recurrent.segments.Packing`): serial depth is the longest
segment, nothing is padded, and stored states are read only at segment starts. Cells without a hand-written derivative,
and an LSTM with a projection, are differentiated by autograd; those with a parallel form have no loop.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from recurrl.recurrent.backends import Options
from recurrl.recurrent.cell import Cell, ParallelCell, States, Weights
from recurrl.recurrent.gated import AnalyticCell
from recurrl.recurrent.operators import layer
from recurrl.recurrent.segments import Segments, expanded

controls_matmul_precision = False


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports every cell on every device; recomputes whole chunks of steps."""
    if options.recompute != "none" and isinstance(cell, ParallelCell):
        return (
            f"recompute={options.recompute} is not possible with backend=scan for a cell with a parallel form, which "
            "has no steps to recompute. Choose recompute=none."
        )
    return None


def _root(steps: int) -> int:
    """√T, rounded up. By a loop, because the compiler has no ``math.isqrt`` for rows whose length changes."""
    root = 1
    while root * root < steps:
        root += 1
    return root


def sequence(
    cell: Cell, x_BTI: Tensor, segments: Segments, stored_states: States, weights: Weights, options: Options
) -> tuple[Tensor, States]:
    """Runs one layer; with recomputation about √T steps of the rows at a time."""
    steps = x_BTI.shape[1]
    if options.recompute == "none" or steps == 0:
        return _sequence(cell, x_BTI, segments, stored_states, weights)
    at_once = _root(steps)
    carried: States = tuple(stored[:, 0] for stored in stored_states)
    pieces = []
    for first in range(0, steps, at_once):
        chunk = slice(first, first + at_once)
        of_rows = (x_BTI[:, chunk], segments.starts_BT[:, chunk], tuple(stored[:, chunk] for stored in stored_states))
        output, ends = checkpoint(
            _continued, cell, *of_rows, carried, weights, use_reentrant=False, preserve_rng_state=False
        )
        carried = tuple(end[:, -1] for end in ends)
        pieces.append((output, *ends))
    output, *ends = (torch.cat(piece, 1) for piece in zip(*pieces, strict=True))
    return output, tuple(segments.only_ends(end) for end in ends)


def _continued(
    cell: Cell, x_BTI: Tensor, starts_BT: Tensor, stored: States, carried: States, weights: Weights
) -> tuple[Tensor, States]:
    """Like ``_sequence``, from the states ``carried`` into the first step where no segment starts there."""
    stored = tuple(
        torch.cat((torch.where(expanded(starts_BT[:, 0], before), of_row[:, 0], before)[:, None], of_row[:, 1:]), 1)
        for of_row, before in zip(stored, carried, strict=True)
    )
    starts_BT = torch.cat((torch.ones_like(starts_BT[:, :1]), starts_BT[:, 1:]), 1)
    return _sequence(cell, x_BTI, Segments(starts_BT), stored, weights)


def _sequence(cell: Cell, x_BTI: Tensor, segments: Segments, stored: States, weights: Weights) -> tuple[Tensor, States]:
    if isinstance(cell, ParallelCell):
        output_BTO, states = cell.parallel(weights, cell.project(weights, x_BTI), segments.starts_BT, stored)
        return output_BTO, tuple(segments.only_ends(state) for state in states)
    compiling = torch.compiler.is_compiling()
    if isinstance(cell, AnalyticCell) and not cell.proj_size and not (compiling and cell.TORCH is None):
        return layer("scan", cell, x_BTI, segments, stored, weights)
    if compiling:
        raise ValueError(
            "backend=scan under torch.compile needs a GRU, an LSTM without a projection or a cell with a parallel "
            "form: what autograd does depends on where segments begin. Choose backend=reference, which the compiler "
            "unrolls, or run without torch.compile."
        )
    packing = segments.packing
    states = tuple(packing.at_starts(state) for state in stored)
    outputs, history = [], []
    for x in cell.project(weights, packing.pack(x_BTI)).split_with_sizes(packing.batch_sizes):
        output, states = cell.step(weights, x, tuple(state[: len(x)] for state in states))
        outputs.append(output)
        history.append(states)
    last = (packing.unpack(torch.cat(each)) for each in zip(*history, strict=True))
    return packing.unpack(torch.cat(outputs)), tuple(segments.only_ends(state) for state in last)
