"""Legendre memory unit: a linear memory of the last θ steps of a few signals, combined with a nonlinear state.

    u = Eₓ·input + E_h·h + Eₘ·m    m' = Ā·m + B̄·u    h' = tanh(Wₓ·input + W_h·h + Wₘ·m' + b)

Voelker et al. 2019, https://proceedings.neurips.cc/paper/2019/hash/952285b9b7e7a1be5aa7849f32ffff05-Abstract.html.
Ā and B̄ are fixed: discretised with a zero-order hold, they make m hold the first D Legendre coefficients of each
signal over its last θ steps.

Shape legend: B rows, X size of a projected input, H hidden size, S signals, D order.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.cell import Cell, States, Weights, factory_of, orthogonal


class LMU(Cell):
    """Legendre memory unit, whose states are its output and its memory.

    Args:
        hidden_size: features of the output, H.
        signals: number of signals that the memory holds, S.
        order: number of Legendre coefficients of each signal, D.
        theta: number of steps that the memory reaches back, θ.
    """

    def __init__(self, hidden_size: int, signals: int = 4, order: int = 32, theta: float = 32) -> None:
        self.hidden_size, self.signals, self.order, self.theta = hidden_size, signals, order, theta

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """Eₓ and Wₓ in one matrix, E_h and W_h in one, Eₘ, Wₘ, and b."""
        hidden, signals, memory = self.hidden_size, self.signals, self.signals * self.order
        return {
            "weight_ih": (signals + hidden, input_size),
            "weight_hh": (signals + hidden, hidden),
            "memory_to_signals": (signals, memory),
            "memory_to_hidden": (hidden, memory),
            "bias": (hidden,),
        }

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The output h, and the memory m."""
        return {"_h": (self.hidden_size,), "_memory": (self.signals, self.order)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Orthogonal matrices; Eₘ and b are zero, as in the paper."""
        if name == "memory_to_signals":
            nn.init.zeros_(parameter)
        else:
            orthogonal(parameter, len(parameter))

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        """``Eₓ·input`` and ``Wₓ·input + b``."""
        bias = functional.pad(weights["bias"], (self.signals, 0))
        return functional.linear(x, weights["weight_ih"], bias)

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        """Computes the memory first, because the output reads it."""
        h, m = states
        a, b = (each.to(m) for each in legendre(self.order, self.theta))
        u, h = functional.linear(h, weights["weight_hh"]).add(x_BX).split((self.signals, self.hidden_size), -1)
        u = u + functional.linear(m.flatten(1), weights["memory_to_signals"])
        m = m @ a.T + u.unsqueeze(-1) * b
        h = torch.tanh(h + functional.linear(m.flatten(1), weights["memory_to_hidden"]))
        return h, (h, m)


@cache
def legendre(order: int, theta: float) -> tuple[Tensor, Tensor]:
    """Ā ``[D, D]`` and B̄ ``[D]`` for one step, in float64: equations 1 and 2 of the paper, discretised."""
    # Training may reuse matrices first computed in inference mode, and autograd rejects tensors made there.
    with torch.inference_mode(False), torch.no_grad():
        i = torch.arange(order, dtype=torch.float64)
        # torch.pow, because the compiler loses the brackets of (-1.0) ** i.
        signs = torch.where(i[:, None] < i, -1.0, torch.pow(-1.0, i[:, None] - i + 1))
        a, b = signs * (2 * i[:, None] + 1) / theta, (2 * i + 1) * torch.pow(-1.0, i) / theta
        both = torch.linalg.matrix_exp(functional.pad(torch.cat((a, b[:, None]), 1), (0, 0, 0, 1)))
        return both[:-1, :-1], both[:-1, -1]


make = factory_of(LMU)
