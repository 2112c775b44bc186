"""Gated recurrent unit, in the form torch and cuDNN use (the reset gate acts after the recurrent product).

    r = σ(xᵣ + hᵣ)    z = σ(x_z + h_z)    n = tanh(xₙ + r ⊙ hₙ)    h' = n + z ⊙ (h − n)

where ``x = W_ih·input + b_ih`` and ``h = W_hh·state + b_hh``, each split in (r, z, n). Cho et al. 2014,
https://arxiv.org/abs/1406.1078.

Shape legend: B rows, P steps of all rows, H hidden size, G gate rows (H of each gate), A columns of the gate buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recurrl.recurrent.cell import States, factory_of
from recurrl.recurrent.gated import AnalyticCell


class GRU(AnalyticCell):
    """Gated recurrent unit, with a hand-written derivative."""

    GATES = 3
    TORCH = nn.GRU
    SPLIT_GATES = 1

    def activate(self, x_gates_BG: Tensor, h_gates_BG: Tensor, states_BH: States) -> States:
        """Computes one step from the two projections."""
        (h,) = states_BH
        sizes = 2 * h.shape[-1], h.shape[-1]
        (x_rz, x_n), (h_rz, h_n) = x_gates_BG.split(sizes, -1), h_gates_BG.split(sizes, -1)
        r, z = torch.sigmoid(x_rz + h_rz).chunk(2, -1)
        n = torch.tanh(torch.addcmul(x_n, r, h_n))
        return (torch.lerp(n, h, z),)

    def forward_step(self, gates_BA: Tensor, states: Sequence[Tensor], out_states: Sequence[Tensor]) -> None:
        """Like ``activate``, into preallocated memory; the gates hold (hₙ, r, z, n)."""
        h_n, r, z, n = gates_BA.chunk(4, -1)
        gates_BA[:, r.shape[1] : 3 * r.shape[1]].sigmoid_()
        n.addcmul_(r, h_n).tanh_()
        torch.lerp(n, states[0], z, out=out_states[0])

    def derivatives(
        self, gates_PA: Tensor, before_PH: Sequence[Tensor], after_PH: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """``∂h'/∂(hₙ, h_r, h_z, xₙ)``, and the direct ``∂h'/∂h``."""
        h_n, r, z, n = gates_PA.chunk(4, -1)
        to_n = (1 - n * n) * (1 - z)
        to_h = to_n * r
        factors = (to_h, to_h * h_n * (1 - r), (before_PH[0] - n) * z * (1 - z), to_n)
        return torch.stack(factors, 1), (z.unsqueeze(1),)

    def backward_step(self, factors: tuple[Tensor, ...], grads_B1H: Sequence[Tensor], grad_before_B1H: Tensor) -> None:
        """Each gradient is the output's gradient times a factor."""
        (grad,), (to_gates, z) = grads_B1H, factors
        to_gates.mul_(grad)
        grad_before_B1H.addcmul_(grad, z)


make = factory_of(GRU)
