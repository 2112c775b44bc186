"""Mamba-2: a selective state space whose state decays by a single factor per head.

    S' = exp(−Δ·exp(a))·S + Δ·B xᵀ    Δ = softplus(w·input + b)    y = S'ᵀC + d·x
    output = W·RMS(y ⊙ silu(z)) + D·input

where x, B, C, z and the input of Δ are linear maps of the normalised input, and all heads share B and C; x, B and C are
then convolved over a few steps and passed through silu. Dao and Gu 2024, https://arxiv.org/abs/2405.21060.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.cell import Weights, factory_of
from recurrl.recurrent.matrix import MatrixCell, MemoryInputs


class Mamba2(MatrixCell):
    """Mamba-2, with a matrix in each head as memory."""

    CONVOLVED = 3

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The block's parameters, the convolution's bias, and the parameters of each head."""
        each = dict.fromkeys(("log_rate", "bias_step", "skip"), (self.heads,))
        return {**super().parameter_shapes(input_size), "bias_conv": (self.convolved,), **each}

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of x, B, C, z and w."""
        values = self.heads * self.value_size
        return values, self.key_size, self.key_size, values, self.heads

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Rates of 1 to 16, steps of 0.001 to 0.1, d of one, as in the paper."""
        if name == "skip":
            nn.init.ones_(parameter)
        else:
            super().initialize(name, parameter)

    def memory_inputs(self, weights: Weights, x: Tensor) -> tuple[MemoryInputs, Tensor]:
        """Keys are B, queries C, values Δ·x."""
        v, k, q, gate, step = x.split(self.sizes, -1)
        v, k, q = (functional.silu(each) for each in (v, k, q))
        step = functional.softplus(step + weights["bias_step"])
        value = v.unflatten(-1, (self.heads, self.value_size))
        k, q = (each.unsqueeze(-2).expand(*value.shape[:-1], self.key_size) for each in (k, q))
        decay = torch.exp(-step * weights["log_rate"].exp())
        read_input = torch.cat(((weights["skip"].unsqueeze(-1) * value).flatten(-2), gate), -1)
        return MemoryInputs(q, k, step.unsqueeze(-1) * value, decay), read_input

    def read(self, weights: Weights, read_input: Tensor, y: Tensor) -> Tensor:
        """Gates the output, then normalises it."""
        skip, gate = read_input.chunk(2, -1)
        y = (y.flatten(-2) + skip) * functional.silu(gate)
        return functional.rms_norm(y, y.shape[-1:], eps=1e-5)


make = factory_of(Mamba2)
