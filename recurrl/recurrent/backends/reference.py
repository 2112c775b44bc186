"""Ground truth for all other backends: an autograd-differentiable loop over steps.

Written to be read, not to be fast. It walks the rows directly, independent of the schedule the other backends share,
and runs in any floating dtype.

Shape legend: B rows, T steps, I input size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recurrl.recurrent.backends import Options
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.segments import Segments, expanded

controls_matmul_precision = False


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports every cell on every device."""
    return None


def sequence(
    cell: Cell, x_BTI: Tensor, segments: Segments, stored_states: States, weights: Weights, options: Options
) -> tuple[Tensor, States]:
    """Runs one layer step by step."""
    states, starts_BT = tuple(stored[:, 0] for stored in stored_states), segments.starts_BT
    outputs: list[Tensor] = []
    history: list[States] = []
    for t in range(x_BTI.shape[1]):
        entering = tuple(
            torch.where(expanded(starts_BT[:, t], state), stored[:, t], state)
            for stored, state in zip(stored_states, states, strict=True)
        )
        output, states = cell.step(weights, cell.project(weights, x_BTI[:, t]), entering)
        outputs.append(output)
        history.append(states)
    return torch.stack(outputs, 1), tuple(torch.stack(steps, 1) for steps in zip(*history, strict=True))
