"""Elman's cell, h' = f(W_ih x + W_hh h + b), with a choice of f (1990, https://doi.org/10.1207/s15516709cog1402_1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.config import CellConfig
from recurrl.config.options import option
from recurrl.recurrent.cell import Cell, States, Weights

NONLINEARITIES = {"tanh": torch.tanh, "relu": torch.relu}


@dataclass
class ElmanConfig(CellConfig):
    """Options of the Elman cell."""

    nonlinearity: str = option("what each unit applies to its input", choices=tuple(NONLINEARITIES), default="tanh")


class Elman(Cell):
    """One state, which is the output."""

    def __init__(self, options: ElmanConfig) -> None:
        self.hidden_size = options.hidden_size
        self.nonlinearity = NONLINEARITIES[options.nonlinearity]

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        return {"weight_ih": (hidden, input_size), "weight_hh": (hidden, hidden), "bias": (hidden,)}

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"": (self.hidden_size,)}

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        (h,) = states
        from_input = functional.linear(x_BX, weights["weight_ih"], weights["bias"])
        h = self.nonlinearity(from_input + functional.linear(h, weights["weight_hh"]))
        return h, (h,)
