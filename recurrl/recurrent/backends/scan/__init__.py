"""A scan over time: hand-written backward in eager mode, torch's scan under ``torch.compile``.

In eager mode segments are packed (longest first, see :class:`~recurrl.recurrent.segments.Packing`): serial depth is the
longest segment, nothing is padded, and stored states are read only at segment starts.

Under ``torch.compile`` nothing may depend on data values: the scan walks all T steps and selects the stored state where
a segment starts. There a flat batch of slices is one row of B·T steps, so restore its time dimension first.

Cells with a parallel form use it in both modes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.scan import packed, traced
from recurrl.recurrent.cell import Cell, States, Weights, is_parallel_in_time
from recurrl.recurrent.gated import is_hand_written
from recurrl.recurrent.segments import Segments, Steps

OWN_PRODUCTS = False


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports every cell on every device; recomputes whole chunks of steps."""
    if options.recompute != "none" and is_parallel_in_time(cell):
        return (
            f"recompute={options.recompute} is not possible with backend=scan for a cell with a parallel form, which "
            "has no steps to recompute. Choose recompute=none."
        )
    return None


def sequence(
    cell: Cell, x_BTI: Tensor, segments: Segments, stored_states: States, weights: Weights, options: Options
) -> tuple[Tensor, States]:
    """Runs one layer as a scan over its steps."""
    if is_parallel_in_time(cell):
        projected_BTX = cell.project(weights, x_BTI)
        output_BTO, states = cell.parallel(weights, projected_BTX, segments.starts_BT, stored_states)
        return output_BTO, tuple(segments.only_ends(state) for state in states)
    if torch.compiler.is_compiling():
        if options.recompute != "none":
            raise ValueError(
                f"recompute={options.recompute} is not possible with backend=scan under torch.compile, whose scan "
                "keeps what its backward pass needs. Choose recompute=none, or do not compile the module."
            )
        return traced.run(cell, x_BTI, segments, stored_states, weights)
    packing = segments.packing
    entering_NX = tuple(packing.at_starts(stored) for stored in stored_states)
    in_row_order = segments.any_reset and options.recompute == "none" and is_hand_written(cell)
    if in_row_order:
        output_PO, last_NX = packed.run(cell, x_BTI.flatten(0, 1), packing.steps, entering_NX, weights)
        output_BTO = output_PO.unflatten(0, packing.rows_and_steps)
    else:
        layer = (cell, packing.pack(x_BTI), Steps.of_sizes(packing.batch_sizes, x_BTI.device), entering_NX, weights)
        if options.recompute == "none":
            output_PO, last_NX = packed.run(*layer)
        else:
            output_PO, last_NX = packed.run_in_chunks(
                *layer, options.chunk_len if options.recompute == "chunk" else None
            )
        output_BTO = packing.unpack(output_PO)
    return output_BTO, tuple(packing.at_ends(state) for state in last_NX)
