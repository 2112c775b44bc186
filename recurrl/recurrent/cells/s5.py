"""S5: a diagonal complex state space in continuous time, discretised with learned time steps.

    s' = exp(ΛΔ) ⊙ s + (exp(ΛΔ) − 1) / Λ ⊙ B·input    y = gelu(2 Re(C·s') + D·input)    output = y ⊙ σ(W·y)

Smith et al. 2023, https://arxiv.org/abs/2208.04933; for reinforcement learning, Lu et al. 2023,
https://arxiv.org/abs/2303.03982. Λ starts from blocks of the eigenvalues of the normal part of HiPPO-LegS, without
conjugates, and Δ from 0.001 to 1, so that states halve in 1.4 to 1400 steps; in the paper, which has longer
sequences, they take at least 14.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.cell import States, Weights, factory_of
from recurrl.recurrent.linear import StateSpaceCell, Terms, gated
from recurrl.recurrent.linear_recurrence import complex_mul

BLOCK = 4
"""Number of entries in a block of the initial Λ: small, so that most frequencies are low."""


class S5(StateSpaceCell):
    """S5, with one complex state.

    Args:
        hidden_size: features of the output, H.
        state_size: number of complex entries in the state, N.
    """

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The state space's parameters; Λ, whose real part is −exp(log_decay); and Δ."""
        each = dict.fromkeys(("log_decay", "frequency", "log_step"), (self.state_size,))
        return {**super().parameter_shapes(input_size), **each}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """HiPPO's eigenvalues, log-uniform time steps, orthogonal matrices."""
        if name == "log_decay":
            parameter.fill_(math.log(0.5))
        elif name == "frequency":
            root = (torch.arange(2 * BLOCK, dtype=torch.float64) + 0.5).sqrt()
            skew = torch.outer(root, root).tril(-1)
            eigenvalues = torch.linalg.eigvalsh(1j * (skew - skew.T))[BLOCK:]
            parameter.copy_(eigenvalues.repeat(-(-self.state_size // BLOCK))[: self.state_size])
        elif name == "log_step":
            nn.init.uniform_(parameter, math.log(0.001), 0.0)
        else:
            super().initialize(name, parameter)

    def coefficients(self, weights: Weights, x: Tensor) -> tuple[Terms, Tensor]:
        """The coefficients, discretised with a zero-order hold, and ``D·input``."""
        decay, frequency, step = weights["log_decay"].exp(), weights["frequency"], weights["log_step"].exp()
        growth, angle = -decay * step, frequency * step
        a = torch.exp(growth) * torch.stack((angle.cos(), angle.sin()))
        # exp(ΛΔ) − 1, without a difference of nearly equal numbers.
        a_less_one = torch.stack((torch.expm1(growth) * angle.cos() - 2 * (angle / 2).sin().square(), a[1]))
        inverse = torch.stack((-decay, -frequency)) / (decay.square() + frequency.square())
        gain = complex_mul(a_less_one, inverse, 0)
        enters, skip = self.entering(weights, x, gain, 0)
        return ((a, enters),), skip

    def read(self, weights: Weights, read_input: Tensor, states: States) -> Tensor:
        """``y ⊙ σ(W·y)``."""
        y = functional.gelu(2 * functional.linear(states[0].flatten(-2), weights["weight_out"]) + read_input)
        return gated(y, functional.linear(y, weights["weight_gate"]))


make = factory_of(S5)
