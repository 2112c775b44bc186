"""The last inputs concatenated, without a recurrence: a control that shows how much memory a task needs.

    output = tanh(Σ Wₖ·u[t − k] + b)    u = tanh(E·input + c)    k = 0 … length − 1

Like frame stacking (Mnih et al. 2015, https://doi.org/10.1038/nature14236), with features instead of images.

Shape legend: B rows, T steps, H hidden size, X size of a projected input.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.cell import ParallelCell, States, Weights, factory_of, orthogonal
from recurrl.recurrent.windows import windows


class Stack(ParallelCell):
    """The last inputs as one state, the oldest first.

    Args:
        hidden_size: features of an input and of the output, H.
        length: inputs that the output is computed from, including the current one; at least 2.
    """

    def __init__(self, hidden_size: int, length: int = 4) -> None:
        self.hidden_size, self.length = hidden_size, length

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The feature map, then the output map."""
        hidden = self.hidden_size
        features = {"weight_ih": (hidden, input_size), "bias_ih": (hidden,)}
        return {**features, "weight_out": (hidden, self.length * hidden), "bias_out": (hidden,)}

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The window, zero where an episode had not begun."""
        return {"_window": (self.length - 1, self.hidden_size)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Orthogonal matrices, zero biases."""
        orthogonal(parameter, self.hidden_size)

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        """The features."""
        return torch.tanh(functional.linear(x, weights["weight_ih"], weights["bias_ih"]))

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        """Computes the output from the window that ends with the new features."""
        window = torch.cat((states[0], x_BX.unsqueeze(1)), 1)
        return self.read(weights, window), (window[:, 1:],)

    def parallel(self, weights: Weights, x_BTX: Tensor, starts_BT: Tensor, stored: States) -> tuple[Tensor, States]:
        """Computes all outputs at once, from the windows of all steps."""
        window = windows(x_BTX, starts_BT, stored[0])
        return self.read(weights, window), (window[:, :, 1:],)

    def read(self, weights: Weights, window: Tensor) -> Tensor:
        """The output from ``[..., length, H]``."""
        return torch.tanh(functional.linear(window.flatten(-2), weights["weight_out"], weights["bias_out"]))


make = factory_of(Stack)
