"""Fast weights with the delta rule (Schlag et al. 2021, https://arxiv.org/abs/2102.11174): the state is a matrix M.

M' = M + β (v − M k) kᵀ    y = M' q    with q, k and v linear in the input, k and q of length one
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.config import CellConfig
from recurrl.config.options import FEATURES, option
from recurrl.recurrent.cell import Cell, States, Weights


@dataclass
class FastWeightConfig(CellConfig):
    """Options of the fast weights."""

    key_size: int = option("features of keys and queries, columns of the matrix", FEATURES, default=16)


class FastWeight(Cell):
    """One state, a matrix ``[hidden_size, key_size]``."""

    def __init__(self, options: FastWeightConfig) -> None:
        self.hidden_size, self.key_size = options.hidden_size, options.key_size
        self.sizes = [self.key_size, self.key_size, self.hidden_size, 1]  # of q, k, v and β

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        return {"weight": (sum(self.sizes), input_size), "bias": (sum(self.sizes),)}

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"_matrix": (self.hidden_size, self.key_size)}

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        return functional.linear(x, weights["weight"], weights["bias"])

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        (matrix,) = states
        q, k, v, beta = x_BX.split(self.sizes, -1)
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        error = torch.sigmoid(beta) * (v - (matrix @ k.unsqueeze(-1)).squeeze(-1))
        matrix = matrix + error.unsqueeze(-1) * k.unsqueeze(-2)
        return (matrix @ q.unsqueeze(-1)).squeeze(-1), (matrix,)
