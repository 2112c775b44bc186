"""Recurrent trace unit: a diagonal complex recurrence whose output is nonlinear in both parts of its state.

    s' = λ ⊙ s + √(1 − |λ|²) ⊙ W·input    output = tanh(Re s', Im s')

Elelimy et al. 2024, https://arxiv.org/abs/2409.01449: the paper's linear unit, with gradients by backpropagation
through time instead of traces. The state has half as many complex entries as the output has features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.cell import States, Weights, factory_of, orthogonal
from recurrl.recurrent.linear import LinearCell, Terms, disk_coefficients, initialize_disk


class RTU(LinearCell):
    """Recurrent trace unit, with one complex state.

    Args:
        hidden_size: features of the output, H.
    """

    COMPLEX = True

    def __init__(self, hidden_size: int) -> None:
        self.hidden_size, self.state_size = hidden_size, (hidden_size + 1) // 2

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The parameters of λ, and W, whose first half computes the real parts."""
        size = self.state_size
        return {"log_decay": (size,), "log_phase": (size,), "weight_ih": (2 * size, input_size)}

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """One state, of real and imaginary parts."""
        return {"": (2, self.state_size)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """λ uniform in the unit disk, as in the paper; W orthogonal."""
        if name.startswith("log"):
            initialize_disk(name, parameter)
        else:
            orthogonal(parameter, 2 * self.state_size)

    def coefficients(self, weights: Weights, x: Tensor) -> tuple[Terms, Tensor]:
        """``(λ, √(1 − |λ|²) ⊙ W·input)``."""
        a, gain = disk_coefficients(weights)
        scaled = gain.unsqueeze(-1) * weights["weight_ih"].unflatten(0, (2, self.state_size))
        return ((a, functional.linear(x, scaled.flatten(0, 1)).unflatten(-1, (2, self.state_size))),), x

    def read(self, weights: Weights, read_input: Tensor, states: States) -> Tensor:
        """The tanh of both parts of the state, without the last entry if the number of features is odd."""
        return torch.tanh(states[0].flatten(-2)[..., : self.hidden_size])


make = factory_of(RTU)
