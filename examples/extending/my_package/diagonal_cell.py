"""A diagonal linear recurrence h' = a ⊙ h + √(1 − a²) ⊙ W x, read out by a gated linear map.

A real-valued LRU (Orvieto et al. 2023, https://arxiv.org/abs/2303.06349). Each unit learns the rate at which it
forgets. The recurrence is linear, so ``parallel`` computes all steps at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.config import CellConfig
from recurrl.config.options import STEPS, option
from recurrl.recurrent.cell import ParallelCell, States, Weights
from recurrl.recurrent.linear_recurrence import linear_recurrence


@dataclass
class DiagonalConfig(CellConfig):
    """Options of the diagonal recurrence."""

    longest_memory: int = option("steps that the slowest unit remembers at first", STEPS, default=100)


class Diagonal(ParallelCell):
    """One state, different from the output."""

    def __init__(self, options: DiagonalConfig) -> None:
        self.hidden_size, self.longest_memory = options.hidden_size, options.longest_memory

    def parameters(self, input_size: int) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        return {"rate": (hidden,), "weight_in": (hidden, input_size), "weight_out": (2 * hidden, hidden)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        if name == "rate":  # 1 − a is about 1 / steps remembered, from 1 step to the longest memory
            steps = torch.linspace(0, 1, self.hidden_size).mul(torch.tensor(self.longest_memory).log()).exp()
            parameter.copy_(torch.expm1(1 / steps).log())
        else:
            super().initialize(name, parameter)

    def states(self) -> dict[str, tuple[int, ...]]:
        return {"": (self.hidden_size,)}

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        return functional.linear(x, weights["weight_in"])

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        (h,), a = states, torch.sigmoid(-weights["rate"])
        h = a * h + (1 - a * a).sqrt() * x_BX
        return self.read_out(weights, h), (h,)

    def parallel(self, weights: Weights, x_BTX: Tensor, starts_BT: Tensor, stored: States) -> tuple[Tensor, States]:
        a = torch.sigmoid(-weights["rate"])
        h = linear_recurrence(a.expand_as(x_BTX), (1 - a * a).sqrt() * x_BTX, starts_BT, stored[0])
        return self.read_out(weights, h), (h,)

    def read_out(self, weights: Weights, h: Tensor) -> Tensor:
        return functional.glu(functional.linear(h, weights["weight_out"]))
