"""Gated recurrent unit, in the form torch and cuDNN use (the reset gate acts after the recurrent product).

    r = σ(xᵣ + hᵣ)    z = σ(x_z + h_z)    n = tanh(xₙ + r ⊙ hₙ)    h' = n + z ⊙ (h − n)

where ``x = W_ih·input + b_ih`` and ``h = W_hh·state + b_hh``, each split in (r, z, n). Cho et al. 2014,
https://arxiv.org/abs/1406.1078.

Shape legend: B rows, T steps, P steps of all rows, I input size, H hidden size, K gates, G gate rows (K × H).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recurrl.recurrent.cell import States
from recurrl.recurrent.gated import GatedCell, into, tanh_into


class GRU(GatedCell):
    """Gated recurrent unit, with a hand-written derivative and torch's kernels."""

    GATES = 3
    TORCH = nn.GRU
    SPLIT_GATES = 1
    HOLD = None
    READ_OUT = None
    READ_OUT_SCALE = 0.0
    CLEAR = None

    def activate(self, x_gates_BG: Tensor, h_gates_BG: Tensor, states_BH: States) -> States:
        """One step from the two projections."""
        (h,) = states_BH
        x_r, x_z, x_n = x_gates_BG.chunk(3, -1)
        h_r, h_z, h_n = h_gates_BG.chunk(3, -1)
        r = torch.sigmoid(x_r + h_r)
        z = torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        return (n + z * (h - n),)

    def forward_views(self, gates_PA: Tensor) -> tuple[Tensor, ...]:
        """Gates hold (hₙ, r, z, n)."""
        h_n, r, z, n = gates_PA.chunk(4, -1)
        return gates_PA[:, r.shape[-1] : 3 * r.shape[-1]], r, z, h_n, n

    def forward_step(
        self, views: tuple[Tensor, ...], states_BH: tuple[Tensor, ...], out_states_BH: tuple[Tensor, ...]
    ) -> None:
        """``activate`` into preallocated memory."""
        rz, r, z, h_n, n = views
        rz.sigmoid_()
        tanh_into(n.addcmul_(r, h_n), n)
        torch.lerp(n, states_BH[0], z, out=out_states_BH[0])

    def derivatives(
        self, gates_PA: Tensor, before_PH: tuple[Tensor, ...], after_PH: tuple[Tensor, ...], factors_PAH: Tensor
    ) -> tuple[Tensor, ...]:
        """``∂h'/∂(hₙ, h_r, h_z, xₙ)``, and the direct ``∂h'/∂h``."""
        h_n, r, z, n = gates_PA.chunk(4, -1)
        (h,) = before_PH
        f_h, f_r, f_z, f_n = factors_PAH.unbind(1)
        one = torch.ones((), dtype=n.dtype, device=n.device)
        into(f_n, torch.addcmul, one, n, n, value=-1)
        f_n.addcmul_(f_n, z, value=-1)
        into(f_h, torch.mul, f_n, r)
        into(f_r, torch.mul, f_h, h_n)
        f_r.addcmul_(f_r, r, value=-1)
        into(f_z, torch.sub, h, n).mul_(z)
        f_z.addcmul_(f_z, z, value=-1)
        return (z.unsqueeze(1),)

    def backward_views(self, factors_PAH: Tensor, others: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Unchanged."""
        return factors_PAH, *others

    def backward_step(self, views: tuple[Tensor, ...], grads_B1H: tuple[Tensor, ...], grad_before_B1H: Tensor) -> None:
        """Every gradient is the output's times a factor."""
        (grad,), (factors, z) = grads_B1H, views
        factors.mul_(grad)
        grad_before_B1H.addcmul_(grad, z)

    def fused(
        self, x_TBI: Tensor, states_1BH: tuple[Tensor, ...], weights: list[Tensor], has_biases: bool, train: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """``torch.gru``."""
        output, h = torch.gru(x_TBI, states_1BH[0], weights, has_biases, 1, 0.0, train, False, False)
        return output, (h,)


def make(options: Any) -> GRU:
    """The cell of ``hidden_size`` features."""
    return GRU(options.hidden_size)
