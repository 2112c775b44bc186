"""torch's own fused kernels (oneDNN, cuDNN), one batch entry a segment.

Where no row holds a reset the rows go to the kernel as they are, which keeps its fastest path in reach. Where some
do, every segment becomes an entry of a packed sequence, so that its own last state comes back.

Shape legend: B rows, T steps, I input size, H hidden size, N segments.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.backends import LayerWeights, Options
from recurrl.recurrent.cells import Cell
from recurrl.recurrent.segments import Segments


def supports(cell: Cell, options: Options, device: torch.device) -> str | None:
    """Torch's kernels keep a backward workspace of their own, so they can recompute nothing."""
    if options.recompute != "none":
        return (
            f"recompute={options.recompute} is not possible with backend=pad, whose fused kernels manage their own "
            "backward workspace. Choose backend=scan, or recompute=none."
        )
    return None


def sequence(
    cell: Cell,
    x_BTI: Tensor,
    segments: Segments,
    stored_states_BTH: tuple[Tensor, ...],
    weights: LayerWeights,
    options: Options,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer by the fused kernel."""
    train = torch.is_grad_enabled()
    if not segments.any_reset:
        entering_BH = tuple(stored_BTH[:, 0].contiguous() for stored_BTH in stored_states_BTH)
        output_BTH, last_BH = cell.fused(x_BTI, None, entering_BH, weights.present(), train)
        return output_BTH, tuple(_at_last_step(state_BH, x_BTI.shape[1]) for state_BH in last_BH)
    packing = segments.packing
    entering_NH = tuple(packing.at_starts(stored_BTH) for stored_BTH in stored_states_BTH)
    packed_output, last_NH = cell.fused(packing.pack(x_BTI), packing.batch_sizes, entering_NH, weights.present(), train)
    return packing.unpack(packed_output), tuple(packing.at_ends(state_NH) for state_NH in last_NH)


def _at_last_step(state_BH: Tensor, steps: int) -> Tensor:
    return functional.pad(state_BH.unsqueeze(1), (0, 0, steps - 1, 0))
