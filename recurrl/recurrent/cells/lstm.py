"""Long short-term memory, in the form torch and cuDNN use.

    i, f, o = σ(x + h)    g = tanh(x_g + h_g)    c' = f ⊙ c + i ⊙ g    h' = o ⊙ tanh(c')

where ``x = W_ih·input + b_ih`` and ``h = W_hh·state + b_hh``, each split in (i, f, g, o). Hochreiter and Schmidhuber
1997; Gers et al. 2000 for the forget gate.

Shape legend: B rows, P steps of all rows, H hidden size, G gate rows (H of each gate), A columns of the gate buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recurrl.recurrent.cell import States, factory_of
from recurrl.recurrent.gated import AnalyticCell


class LSTM(AnalyticCell):
    """Long short-term memory, with a hand-written derivative."""

    GATES = 4
    STATES = ("_h", "_c")
    TORCH = nn.LSTM
    SPLIT_GATES = 0

    def activate(self, x_gates_BG: Tensor, h_gates_BG: Tensor, states_BH: States) -> States:
        """Computes one step from the two projections."""
        _, c = states_BH
        i, f, g, o = (x_gates_BG + h_gates_BG).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward_step(self, gates_BA: Tensor, states: Sequence[Tensor], out_states: Sequence[Tensor]) -> None:
        """Like ``activate``, into preallocated memory; the gates hold (i, f, g, o)."""
        i, f, g, o = gates_BA.chunk(4, -1)
        h, c = out_states
        gates_BA[:, : 2 * i.shape[1]].sigmoid_()
        g.tanh_()
        o.sigmoid_()
        torch.mul(f, states[1], out=c).addcmul_(i, g)
        torch.tanh(c, out=h).mul_(o)

    def derivatives(
        self, gates_PA: Tensor, before_PH: Sequence[Tensor], after_PH: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """``(∂c'/∂(i, f, g), ∂h'/∂o)`` with respect to the gates' projections, then ``∂h'/∂c'`` and ``∂c'/∂c``."""
        i, f, g, o = gates_PA.chunk(4, -1)
        tanh_c = after_PH[1].tanh()
        factors = (g * i * (1 - i), before_PH[1] * f * (1 - f), i * (1 - g * g), tanh_c * o * (1 - o))
        return torch.stack(factors, 1), ((o * (1 - tanh_c * tanh_c)).unsqueeze(1), f.unsqueeze(1))

    def backward_step(self, factors: tuple[Tensor, ...], grads_B1H: Sequence[Tensor], grad_before_B1H: Tensor) -> None:
        """The gates i, f and g act through c', and o through h'; the incoming h acts only through its projection."""
        (grad_h, grad_c), (to_gates, h_by_c, f) = grads_B1H, factors
        grad_c.addcmul_(grad_h, h_by_c)
        to_gates[:, :3].mul_(grad_c)
        to_gates[:, 3:].mul_(grad_h)
        grad_c.mul_(f)


make = factory_of(LSTM)
