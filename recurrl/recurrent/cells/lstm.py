"""Long short-term memory, in the form torch and cuDNN use.

    i, f, o = σ(x + h)    g = tanh(x_g + h_g)    c' = f ⊙ c + i ⊙ g    h' = o ⊙ tanh(c')

where ``x = W_ih·input + b_ih`` and ``h = W_hh·state + b_hh``, each split in (i, f, g, o). Hochreiter and Schmidhuber
1997; Gers et al. 2000 for the forget gate.

Shape legend: B rows, T steps, P steps of all rows, I input size, H hidden size, K gates, G gate rows (K × H).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from recurrl.recurrent.cell import States
from recurrl.recurrent.gated import GatedCell, into, tanh_into


class LSTM(GatedCell):
    """Long short-term memory, with a hand-written derivative and torch's kernels."""

    GATES = 4
    STATES = ("_h", "_c")
    TORCH = nn.LSTM
    SPLIT_GATES = 0
    # i = o = σ(−∞) = 0 and f = σ(∞) = 1, exact in every floating format: c' = c and h' = 0.
    HOLD = (-1e4, 1e4, 0.0, -1e4)
    # i = 0, o = 1 and f = σ(−30): c' = f ⊙ c = tanh(c') = h', to full precision.
    READ_OUT = (-1e4, -30.0, 0.0, 1e4)
    READ_OUT_SCALE = 1 / (1 + math.exp(30.0))
    # i = f = o = 0, exact: c' = h' = 0.
    CLEAR = (-1e4, -1e4, 0.0, -1e4)

    def activate(self, x_gates_BG: Tensor, h_gates_BG: Tensor, states_BH: States) -> States:
        """One step from the two projections."""
        _, c = states_BH
        i, f, g, o = (x_gates_BG + h_gates_BG).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward_views(self, gates_PA: Tensor) -> tuple[Tensor, ...]:
        """Gates hold (i, f, g, o)."""
        i, f, g, o = gates_PA.chunk(4, -1)
        return gates_PA[:, : 2 * i.shape[-1]], i, f, g, o

    def forward_step(
        self, views: tuple[Tensor, ...], states_BH: tuple[Tensor, ...], out_states_BH: tuple[Tensor, ...]
    ) -> None:
        """``activate`` into preallocated memory."""
        i_f, i, f, g, o = views
        out_h, out_c = out_states_BH
        i_f.sigmoid_()
        tanh_into(g, g)
        o.sigmoid_()
        torch.mul(f, states_BH[1], out=out_c).addcmul_(i, g)
        tanh_into(out_c, out_h).mul_(o)

    def derivatives(
        self, gates_PA: Tensor, before_PH: tuple[Tensor, ...], after_PH: tuple[Tensor, ...], factors_PAH: Tensor
    ) -> tuple[Tensor, ...]:
        """``(∂c'/∂(i, f, g), ∂h'/∂o)`` with respect to the gates' projections, then ``∂h'/∂c'`` and ``∂c'/∂c``."""
        i, f, g, o = gates_PA.chunk(4, -1)
        tanh_c = tanh_into(after_PH[1], torch.empty_like(after_PH[1]))
        to_i, to_f, to_g, to_o = factors_PAH.unbind(1)
        into(to_i, torch.mul, g, i)
        to_i.addcmul_(to_i, i, value=-1)
        into(to_f, torch.mul, before_PH[1], f)
        to_f.addcmul_(to_f, f, value=-1)
        into(to_g, torch.mul, i, g).mul_(g).neg_().add_(i)
        into(to_o, torch.mul, tanh_c, o)
        h_by_c = torch.addcmul(o, to_o, tanh_c, value=-1)
        to_o.addcmul_(to_o, o, value=-1)
        return h_by_c.unsqueeze(1), f.unsqueeze(1)

    def backward_views(self, factors_PAH: Tensor, others: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """i, f and g act through c', o through h'."""
        return factors_PAH[:, :3], factors_PAH[:, 3:], *others

    def backward_step(self, views: tuple[Tensor, ...], grads_B1H: tuple[Tensor, ...], grad_before_B1H: Tensor) -> None:
        """The incoming h acts only through its projection."""
        (grad_h, grad_c), (through_c, through_h, h_by_c, f) = grads_B1H, views
        grad_c.addcmul_(grad_h, h_by_c)
        through_c.mul_(grad_c)
        through_h.mul_(grad_h)
        grad_c.mul_(f)

    def fused(
        self, x_TBI: Tensor, states_1BH: tuple[Tensor, ...], weights: list[Tensor], has_biases: bool, train: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """``torch.lstm``."""
        output, h, c = torch.lstm(x_TBI, states_1BH, weights, has_biases, 1, 0.0, train, False, False)
        return output, (h, c)


def make(options: Any) -> LSTM:
    """The cell of ``hidden_size`` features."""
    return LSTM(options.hidden_size)
