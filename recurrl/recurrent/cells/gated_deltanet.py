"""Gated DeltaNet: a matrix memory that decays, and in which a value replaces what its key reads.

    S' = α(S − β·k kᵀS) + β·k vᵀ    α = exp(−exp(a)·softplus(w_a·input + b_a))    β = σ(w_b·input)
    output = W(RMS(S'ᵀq) ⊙ silu(W_g·input)) + D·input

Yang et al. 2024, https://arxiv.org/abs/2412.06464: q, k and v are maps of the normalised input, convolved over a few
steps and passed through silu; q and k are then scaled to length one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.cell import Weights, factory_of
from recurrl.recurrent.matrix import MatrixCell, MemoryInputs


class GatedDeltaNet(MatrixCell):
    """Gated DeltaNet, with a matrix in each head as memory."""

    CONVOLVED = 3

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The block's parameters, and those of the decay."""
        return {**super().parameter_shapes(input_size), "log_rate": (self.heads,), "bias_rate": (self.heads,)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Rates and steps as in Mamba: 1 to 16, and 0.001 to 0.1 after the softplus. Small matrices, as in the authors'
        code, so that the memory adds little at first.
        """
        if name in ("weight_in", "weight_out"):
            for each in parameter.split(self.sizes if name == "weight_in" else (len(parameter),)):
                nn.init.xavier_uniform_(each, gain=2**-2.5)
        else:
            super().initialize(name, parameter)

    def memory_inputs(self, weights: Weights, x: Tensor) -> tuple[MemoryInputs, Tensor]:
        """The inputs of the delta rule, and the output's gate."""
        q, k, v, rate, beta, gate = x.split(self.sizes, -1)
        q, k, v = (functional.silu(each).unflatten(-1, (self.heads, -1)) for each in (q, k, v))
        decay = torch.exp(-weights["log_rate"].exp() * functional.softplus(rate + weights["bias_rate"]))
        q, k = (functional.normalize(each, dim=-1, eps=1e-6) for each in (q, k))
        return MemoryInputs(q, k, v, decay, torch.sigmoid(beta)), gate

    def read(self, weights: Weights, read_input: Tensor, y: Tensor) -> Tensor:
        """Normalises each head, then applies the output's gate."""
        return functional.silu(read_input) * functional.rms_norm(y, y.shape[-1:], eps=1e-5).flatten(-2)


make = factory_of(GatedDeltaNet)
