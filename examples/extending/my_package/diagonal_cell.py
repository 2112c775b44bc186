"""A diagonal linear recurrence h' = a ⊙ h + √(1 − a²) ⊙ W x, read out by a gated linear map.

A real-valued LRU (Orvieto et al. 2023, https://arxiv.org/abs/2303.06349). Each unit learns the rate at which it
forgets. The recurrence is linear, so its coefficients and its read-out define both one step and all steps at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.config import CellConfig
from recurrl.config.options import STEPS, option
from recurrl.recurrent.cell import States, Weights
from recurrl.recurrent.linear import LinearCell, Terms


@dataclass
class DiagonalConfig(CellConfig):
    """Options of the diagonal recurrence."""

    longest_memory: int = option("steps that the slowest unit remembers at first", STEPS, default=100)


class Diagonal(LinearCell):
    """One state, different from the output."""

    def __init__(self, options: DiagonalConfig) -> None:
        self.hidden_size, self.longest_memory = options.hidden_size, options.longest_memory

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        return {"rate": (hidden,), "weight_in": (hidden, input_size), "weight_out": (2 * hidden, hidden)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        if name == "rate":  # 1 − a is about 1 / steps remembered, from 1 step to the longest memory
            steps = torch.linspace(0, 1, self.hidden_size).mul(torch.tensor(self.longest_memory).log()).exp()
            parameter.copy_(torch.expm1(1 / steps).log())
        else:
            super().initialize(name, parameter)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"": (self.hidden_size,)}

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        return functional.linear(x, weights["weight_in"])

    def coefficients(self, weights: Weights, x: Tensor) -> tuple[Terms, Tensor]:
        a = torch.sigmoid(-weights["rate"])
        return ((a, (1 - a * a).sqrt() * x),), x

    def read(self, weights: Weights, read_input: Tensor, states: States) -> Tensor:
        return functional.glu(functional.linear(states[0], weights["weight_out"]))
