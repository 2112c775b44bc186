"""IndRNN: each unit sees only its own past.

    h' = relu(W·input + u ⊙ h + b)

Li et al. 2018, https://arxiv.org/abs/1803.04831. Initially each u is between 0 and 1, so that some units forget at once
and others hardly at all.

Shape legend: B rows, X size of a projected input.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.cell import Cell, States, Weights, factory_of, orthogonal


class IndRNN(Cell):
    """IndRNN, whose one state is its output."""

    def __init__(self, hidden_size: int) -> None:
        self.hidden_size = hidden_size

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """W, u and b."""
        hidden = self.hidden_size
        return {"weight_ih": (hidden, input_size), "recurrent": (hidden,), "bias_ih": (hidden,)}

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The output."""
        return {"": (self.hidden_size,)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Uniform between 0 and 1 for u, orthogonal for W, zero for b."""
        if name == "recurrent":
            nn.init.uniform_(parameter)
        else:
            orthogonal(parameter, self.hidden_size)

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        """``W·input + b``."""
        return functional.linear(x, weights["weight_ih"], weights["bias_ih"])

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        """Computes one step; it is elementwise."""
        h = torch.relu(torch.addcmul(x_BX, weights["recurrent"], states[0]))
        return h, (h,)


make = factory_of(IndRNN)
