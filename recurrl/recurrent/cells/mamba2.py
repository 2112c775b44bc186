"""Mamba-2: a selective state space whose state decays by one number in each head.

    S' = exp(−Δ·exp(a))·S + Δ·B xᵀ    Δ = softplus(w·input + b)    y = S'ᵀC + D·x    output = W·RMS(y ⊙ silu(z))

where x, z, B, C and Δ are maps of the input, B and C the same in all heads. Dao and Gu 2024,
https://arxiv.org/abs/2405.21060, without the short convolution there.

Shape legend: H hidden size, N heads, K state size (of keys B and queries C), V head size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.cell import Weights, factory, orthogonal
from recurrl.recurrent.matrix import Access, MatrixCell


class Mamba2(MatrixCell):
    """A matrix in each head."""

    def parameters(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The maps of the input in one (x, z, B, C, Δ), those of each head, and the output's."""
        heads, values = self.heads, self.heads * self.value_size
        return {
            "weight_in": (sum(self._sizes), input_size),
            "log_rate": (heads,),
            "bias_step": (heads,),
            "skip": (heads,),
            "weight_out": (self.hidden_size, values),
        }

    @property
    def _sizes(self) -> tuple[int, ...]:
        values = self.heads * self.value_size
        return values, values, self.key_size, self.key_size, self.heads

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Rates of 1 to 16, steps of 0.001 to 0.1, D of one, as in the paper; orthogonal matrices."""
        if name == "log_rate":
            nn.init.uniform_(parameter, 1, 16).log_()
        elif name == "bias_step":
            nn.init.uniform_(parameter, math.log(0.001), math.log(0.1)).exp_().expm1_().log_()
        elif name == "skip":
            nn.init.ones_(parameter)
        else:
            orthogonal(parameter, self.heads * self.value_size)

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        """The maps of the input."""
        return functional.linear(x, weights["weight_in"])

    def access(self, weights: Weights, x: Tensor) -> tuple[Access, Tensor]:
        """Keys are B, queries C, values Δ·x."""
        v, gate, k, q, step = x.split(self._sizes, -1)
        step = functional.softplus(step + weights["bias_step"])
        value = v.unflatten(-1, (self.heads, self.value_size))
        k, q = (each.unsqueeze(-2).expand(*value.shape[:-1], self.key_size) for each in (k, q))
        keep = torch.exp(-step * weights["log_rate"].exp())
        rest = torch.cat(((weights["skip"].unsqueeze(-1) * value).flatten(-2), gate), -1)
        return Access(q, k, step.unsqueeze(-1) * value, keep), rest

    def read(self, weights: Weights, rest: Tensor, y: Tensor) -> Tensor:
        """Gated, then normalised."""
        skip, gate = rest.chunk(2, -1)
        y = (y.flatten(-2) + skip) * functional.silu(gate)
        return functional.linear(functional.rms_norm(y, y.shape[-1:], eps=1e-5), weights["weight_out"])


make = factory(Mamba2)
