"""minLSTM: an LSTM whose gates do not depend on the state, normalised so that the state stays in scale.

    f = σ(x_f)    i = σ(x_i)    h' = f / (f + i) ⊙ h + i / (f + i) ⊙ x_h

where ``x = W_ih·input + b_ih``, split in (f, i, h). Feng et al. 2024, https://arxiv.org/abs/2410.01201, algorithm 3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recurrl.recurrent.cell import Weights, factory_of, orthogonal
from recurrl.recurrent.cells.mingru import MinGRU
from recurrl.recurrent.linear import Terms

TINY = 1e-30
"""Keeps the denominator positive where both gates underflow."""


class MinLSTM(MinGRU):
    """minLSTM, whose one state is its output: a minGRU with other gates."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size)

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The maps of f, i and h."""
        return {"weight_ih": (3 * self.hidden_size, input_size), "bias_ih": (3 * self.hidden_size,)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Orthogonal for each gate; biases that set each f between 0 and 1, so that units forget at different rates,
        and make i equal to 1 − f.
        """
        orthogonal(parameter, self.hidden_size)
        if name == "bias_ih":
            forget, enter, _ = parameter.chunk(3)
            nn.init.uniform_(forget).logit_(eps=1e-2)
            enter.copy_(-forget)

    def coefficients(self, weights: Weights, x: Tensor) -> tuple[Terms, Tensor]:
        """The gates, normalised."""
        gates, candidate = x.split((2 * self.hidden_size, self.hidden_size), -1)
        forget, enter = torch.sigmoid(gates).chunk(2, -1)
        total = forget + enter + TINY
        return ((forget / total, enter / total * candidate),), candidate


make = factory_of(MinLSTM)
