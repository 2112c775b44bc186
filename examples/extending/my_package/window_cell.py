"""A window over the last steps: the state is a matrix of past inputs, the oldest first.

A causal convolution, like stacked frames but over features: y = tanh(Σ wₖ ⊙ u[t − k] + b) with u = W x.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.config import CellConfig
from recurrl.config.options import STEPS, option
from recurrl.recurrent.cell import Cell, States, Weights


@dataclass
class WindowConfig(CellConfig):
    """Options of the window."""

    length: int = option("steps in the window", STEPS, default=8)


class Window(Cell):
    """One state, ``[length, hidden_size]``."""

    def __init__(self, options: WindowConfig) -> None:
        self.hidden_size, self.length = options.hidden_size, options.length

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        return {"weight_in": (hidden, input_size), "weight": (self.length, hidden), "bias": (hidden,)}

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"_window": (self.length, self.hidden_size)}

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        return functional.linear(x, weights["weight_in"])

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        (window,) = states
        window = torch.cat((window[:, 1:], x_BX.unsqueeze(1)), 1)
        return torch.tanh((window * weights["weight"]).sum(1) + weights["bias"]), (window,)
