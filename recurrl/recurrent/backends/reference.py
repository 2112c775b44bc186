"""The truth all other backends are tested against: a loop over steps that autograd differentiates.

Written to be read, not to be fast, and independent of the schedule that the others share: it walks the rows as they
come. Runs in any floating dtype, float64 included.

Shape legend: B rows, T steps, I input size, G gate rows, X size of a state.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent import precision
from recurrl.recurrent.backends import LayerWeights, Options, step
from recurrl.recurrent.cells import Cell
from recurrl.recurrent.segments import Segments

OWN_PRODUCTS = False


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """The loop runs every cell everywhere; it has no recomputation and no precision of its own."""
    if options.recompute != "none":
        return (
            f"recompute={options.recompute} is not possible with backend=reference, which keeps every step for "
            "autograd. Choose backend=scan, or recompute=none."
        )
    return precision.refusal_by_torch("reference", options.precision, options.compute_dtype, device)


def sequence(
    cell: Cell,
    x_BTI: Tensor,
    segments: Segments,
    stored_states_BTX: tuple[Tensor, ...],
    weights: LayerWeights,
    options: Options,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer, one step after the other."""
    states_BX = tuple(stored[:, 0] for stored in stored_states_BTX)
    history: list[tuple[Tensor, ...]] = []
    for t in range(x_BTI.shape[1]):
        start_B1 = segments.starts_BT[:, t, None]
        entering_BX = tuple(
            torch.where(start_B1, stored[:, t], state)
            for stored, state in zip(stored_states_BTX, states_BX, strict=True)
        )
        x_gates_BG = functional.linear(x_BTI[:, t], weights.w_ih, weights.b_ih)
        states_BX = step(cell, weights, x_gates_BG, entering_BX)
        history.append(states_BX)
    all_states_BTX = tuple(torch.stack(states, 1) for states in zip(*history, strict=True))
    return all_states_BTX[0], tuple(segments.only_ends(states) for states in all_states_BTX)
