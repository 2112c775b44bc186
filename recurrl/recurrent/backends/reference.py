"""The truth all other backends are tested against: a loop over steps that autograd differentiates.

Written to be read, not to be fast. Runs in any floating dtype, float64 included.

Shape legend: B rows, T steps, I input size, H hidden size, G gate rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.backends import LayerWeights, Options
from recurrl.recurrent.cells import Cell
from recurrl.recurrent.segments import Segments


def supports(cell: Cell, options: Options, device: torch.device) -> str | None:
    """The loop runs every cell everywhere; it has no recomputation and no reduced precision."""
    if options.recompute != "none":
        return (
            f"recompute={options.recompute} is not possible with backend=reference, which keeps every step for "
            "autograd. Choose backend=scan, or recompute=none."
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
    """One layer, one step after the other."""
    states_BH = tuple(stored_BTH[:, 0] for stored_BTH in stored_states_BTH)
    history: list[tuple[Tensor, ...]] = []
    for t in range(x_BTI.shape[1]):
        start_B1 = segments.starts_BT[:, t, None]
        states_BH = tuple(
            torch.where(start_B1, stored_BTH[:, t], state_BH)
            for stored_BTH, state_BH in zip(stored_states_BTH, states_BH, strict=True)
        )
        x_gates_BG = functional.linear(x_BTI[:, t], weights.w_ih, weights.b_ih)
        h_gates_BG = functional.linear(states_BH[0], weights.w_hh, weights.b_hh)
        states_BH = cell.activate(x_gates_BG, h_gates_BG, states_BH)
        history.append(states_BH)
    all_states_BTH = tuple(torch.stack(states, 1) for states in zip(*history, strict=True))
    return all_states_BTH[0], all_states_BTH
