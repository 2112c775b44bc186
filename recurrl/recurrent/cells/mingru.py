"""minGRU: gate and candidate do not depend on the state, so it runs in parallel over time.

    z = σ(x_z)    h' = (1 − z) ⊙ h + z ⊙ x_h

where ``x = W_ih·input + b_ih``, split in (z, h). Feng et al. 2024, https://arxiv.org/abs/2410.01201, algorithm 1.

Shape legend: B rows, T steps, H hidden size, G gate rows (2 × H).
"""

from __future__ import annotations

import torch
from torch import Tensor

from recurrl.recurrent.linear_recurrence import linear_recurrence

GATES = 2
STATES = ("",)
RECURRENT = False
TORCH = None


def activate(x_gates_BG: Tensor, h_gates_BG: Tensor | None, states_BH: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One step."""
    x_z, x_h = x_gates_BG.chunk(2, -1)
    return (torch.lerp(states_BH[0], x_h, torch.sigmoid(x_z)),)


def parallel(x_gates_BTG: Tensor, starts_BT: Tensor, stored_BTH: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """All steps as ``h' = a ⊙ h + b``; at a segment start the stored state's contribution is folded into b."""
    x_z, x_h = x_gates_BTG.chunk(2, -1)
    z = torch.sigmoid(x_z)
    keep = 1 - z
    start_BT1 = starts_BT.unsqueeze(-1)
    b = z * x_h + keep * torch.where(start_BT1, stored_BTH[0], 0.0)
    return (linear_recurrence(torch.where(start_BT1, 0.0, keep), b),)
