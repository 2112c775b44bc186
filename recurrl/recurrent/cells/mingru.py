"""minGRU: a GRU whose gate and candidate do not depend on the state, so that it runs in parallel over time.

    z = σ(x_z)    h' = (1 − z) ⊙ h + z ⊙ x_h

where ``x = W_ih·input + b_ih``, split in (z, h). Feng et al. 2024, https://arxiv.org/abs/2410.01201, algorithm 1. With
``highway``, the output is ``σ(x_g) ⊙ h' + (1 − σ(x_g)) ⊙ input`` (Srivastava et al. 2015,
https://arxiv.org/abs/1505.00387), which makes stacked layers easier to train; an input whose size is not H is first
mapped to H features linearly.

Shape legend: H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.cell import States, Weights, factory_of, orthogonal
from recurrl.recurrent.linear import LinearCell, Terms


class MinGRU(LinearCell):
    """minGRU, whose one state is also its output, unless there is a highway.

    Args:
        hidden_size: features of the state, H.
        highway: let the input bypass the layer through a gate.
    """

    def __init__(self, hidden_size: int, highway: bool = False) -> None:
        self.hidden_size, self.highway = hidden_size, highway

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The maps of z and h; for the highway also those of its gate and, if the sizes differ, of the input."""
        rows = 4 if self.highway and input_size != self.hidden_size else 2 + self.highway
        return {"weight_ih": (rows * self.hidden_size, input_size), "bias_ih": (rows * self.hidden_size,)}

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The state h, one vector."""
        return {"": (self.hidden_size,)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Orthogonal for each gate; biases that set each z between 0 and 1, so that units forget at different rates."""
        orthogonal(parameter, self.hidden_size)
        if name == "bias_ih":
            nn.init.uniform_(parameter[: self.hidden_size]).logit_(eps=1e-2)

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        """The gates, and for the highway the input as the last H features."""
        gates = functional.linear(x, weights["weight_ih"], weights["bias_ih"])
        return torch.cat((gates, x), -1) if self.highway and gates.shape[-1] == 3 * self.hidden_size else gates

    def coefficients(self, weights: Weights, x: Tensor) -> tuple[Terms, Tensor]:
        """``(1 − z, z ⊙ x_h)``."""
        hidden = self.hidden_size
        z, candidate, read_input = x.split((hidden, hidden, x.shape[-1] - 2 * hidden), -1)
        z = torch.sigmoid(z)
        return ((1 - z, z * candidate),), read_input

    def read(self, weights: Weights, read_input: Tensor, states: States) -> Tensor:
        """The state, or its mixture with the input."""
        if not self.highway:
            return states[0]
        gate, bypass = read_input.chunk(2, -1)
        return torch.lerp(bypass, states[0], torch.sigmoid(gate))


make = factory_of(MinGRU)
