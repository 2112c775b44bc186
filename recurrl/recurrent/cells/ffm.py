"""Fast and forgetful memory: traces that decay at fixed rates, in contexts that oscillate at fixed frequencies.

    S' = γ ⊙ S + x̃·1ᵀ    γ = exp(−|α|)·exp(iω)ᵀ    x̃ = W₁·input ⊙ σ(W₂·input)
    output = LN(W₃·(Re S', Im S')) ⊙ g + W₅·input ⊙ (1 − g)    g = σ(W₄·input)

Morad et al. 2023, https://arxiv.org/abs/2310.04128. α and ω are learned. Initially, as in the authors' code, the traces
range from one that halves in a step to one that has a hundredth left after 1024 steps, and the periods from 1 to 1024
steps.

Shape legend: H hidden size, M traces, C contexts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.cell import States, Weights, factory_of, orthogonal
from recurrl.recurrent.linear import LinearCell, Terms

PERIOD = 1024
SLOWEST, FASTEST = -math.log(0.01) / PERIOD, 0.673
"""The range of the initial α."""


class FFM(LinearCell):
    """Fast and forgetful memory, whose one complex state is a matrix of traces and contexts.

    Args:
        hidden_size: features of the output, H.
        memory_size: traces, M.
        context_size: contexts, C.
    """

    COMPLEX = True

    def __init__(self, hidden_size: int, memory_size: int = 32, context_size: int = 4) -> None:
        self.hidden_size, self.memory_size, self.context_size = hidden_size, memory_size, context_size

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """α, ω, the four maps of the input in one matrix, and W₃."""
        hidden, memory, context = self.hidden_size, self.memory_size, self.context_size
        rows = 2 * (memory + hidden)
        return {
            "alpha": (memory,),
            "omega": (context,),
            "weight_in": (rows, input_size),
            "bias_in": (rows,),
            "weight_out": (hidden, 2 * memory * context),
            "bias_out": (hidden,),
        }

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """One state, of real and imaginary parts."""
        return {"": (2, self.memory_size, self.context_size)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Evenly spaced decays and periods, orthogonal matrices, zero biases."""
        if name == "alpha":
            parameter.copy_(torch.linspace(SLOWEST, FASTEST, self.memory_size))
        elif name == "omega":
            parameter.copy_(2 * math.pi / torch.linspace(1, PERIOD, self.context_size))
        else:
            orthogonal(parameter, self.hidden_size)

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        """The four maps of the input."""
        return functional.linear(x, weights["weight_in"], weights["bias_in"])

    def coefficients(self, weights: Weights, x: Tensor) -> tuple[Terms, Tensor]:
        """``(γ, x̃·1ᵀ)``: the second is real, and the same in each context; with what ``read`` needs."""
        omega = weights["omega"]
        a = torch.exp(-weights["alpha"].abs()).unsqueeze(-1) * torch.stack((omega.cos(), omega.sin())).unsqueeze(1)
        enter, gate, read_input = x.split((self.memory_size, self.memory_size, 2 * self.hidden_size), -1)
        b = (enter * torch.sigmoid(gate)).unsqueeze(-1).expand(*x.shape[:-1], *a.shape[1:])
        return ((a, torch.stack((b, torch.zeros_like(b)), -3)),), read_input

    def read(self, weights: Weights, read_input: Tensor, states: States) -> Tensor:
        """A gated mixture of the normalised memory and the input."""
        gate, bypass = read_input.chunk(2, -1)
        z = functional.linear(states[0].flatten(-3), weights["weight_out"], weights["bias_out"])
        return torch.lerp(bypass, functional.layer_norm(z, z.shape[-1:]), torch.sigmoid(gate))


make = factory_of(FFM)
