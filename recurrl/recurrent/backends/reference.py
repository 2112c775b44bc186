"""Ground truth for all other backends: an autograd-differentiable loop over steps.

Written to be read, not to be fast. It walks the rows directly, independent of the schedule the other backends share,
and runs in any floating dtype.

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
    """Supports every cell on every device, but no recomputation; precision is torch's."""
    if options.recompute != "none":
        return (
            f"recompute={options.recompute} is not possible with backend=reference, which keeps every step for "
            "autograd. Choose backend=scan, or recompute=none."
        )
    return precision.torch_refusal("reference", options.precision, options.compute_dtype, device)


def sequence(
    cell: Cell,
    x_BTI: Tensor,
    segments: Segments,
    stored_states_BTX: tuple[Tensor, ...],
    weights: LayerWeights,
    options: Options,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Runs one layer step by step."""
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
