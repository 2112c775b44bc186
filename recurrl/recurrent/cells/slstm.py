"""sLSTM: an LSTM with an exponential input gate, whose memory is a weighted mean of all that entered.

    m' = max(log f + m, x_i)    c' = exp(log f + m − m')·c + exp(x_i − m')·tanh(x_z)    h' = σ(x_o) ⊙ c' / n'

where x is the sum of both projections, split in (i, f, z, o), ``log f = log σ(x_f)``, and n' is c' with one in place of
the tanh. m keeps the exponentials in range: it is the logarithm of the largest weight in the mean, so that n is at
least one. Before anything has entered, n is zero, and m' is x_i. Beck et al. 2024, https://arxiv.org/abs/2405.04517,
with one head.

Shape legend: B rows, H hidden size, G gate rows (H of each gate).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.cell import States, factory_of
from recurrl.recurrent.gated import GatedCell


class SLSTM(GatedCell):
    """sLSTM, whose states are its output, its memory, the normaliser and the stabiliser."""

    GATES = 4
    STATES = ("_h", "_c", "_n", "_m")

    def activate(self, x_gates_BG: Tensor, h_gates_BG: Tensor, states_BH: States) -> States:
        """Computes one step from the two projections."""
        _, c, n, m = states_BH
        i, f, z, o = (x_gates_BG + h_gates_BG).chunk(4, -1)
        # With i far below zero, exp(kept − i) would overflow where there is nothing to keep.
        kept = torch.where(n == 0, -torch.inf, functional.logsigmoid(f) + m)
        m = torch.maximum(kept, i)
        enter, forget = torch.exp(i - m), torch.exp(kept - m)
        c, n = forget * c + enter * torch.tanh(z), forget * n + enter
        return torch.sigmoid(o) * c / n, c, n, m


make = factory_of(SLSTM)
