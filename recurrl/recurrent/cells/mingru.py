"""minGRU: gate and candidate do not depend on the state, so it runs in parallel over time.

    z = σ(x_z)    h' = (1 − z) ⊙ h + z ⊙ x_h

where ``x = W_ih·input + b_ih``, split in (z, h). Feng et al. 2024, https://arxiv.org/abs/2410.01201, algorithm 1.

Shape legend: B rows, T steps, H hidden size, G gate rows (2 × H).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recurrl.recurrent.cell import ParallelCell, States, Weights
from recurrl.recurrent.gated import GatedCell
from recurrl.recurrent.linear_recurrence import linear_recurrence


class MinGRU(GatedCell, ParallelCell):
    """A gated cell without a recurrent projection."""

    GATES = 2
    RECURRENT = False

    def activate(self, x_gates_BG: Tensor, h_gates_BG: None, states_BH: States) -> States:
        """One step."""
        x_z, x_h = x_gates_BG.chunk(2, -1)
        return (torch.lerp(states_BH[0], x_h, torch.sigmoid(x_z)),)

    def parallel(self, weights: Weights, x_BTX: Tensor, starts_BT: Tensor, stored: States) -> tuple[Tensor, States]:
        """All steps as ``h' = a ⊙ h + b``."""
        x_z, x_h = x_BTX.chunk(2, -1)
        z = torch.sigmoid(x_z)
        h_BTH = linear_recurrence(1 - z, z * x_h, starts_BT, stored[0])
        return h_BTH, (h_BTH,)


def make(options: Any) -> MinGRU:
    """The cell of ``hidden_size`` features."""
    return MinGRU(options.hidden_size)
