"""Linear recurrent unit: a diagonal complex recurrence between linear maps, then a gate.

    s' = λ ⊙ s + √(1 − |λ|²) ⊙ B·input    y = Re(C·s') + D·input    output = y ⊙ σ(W·y + b)

Orvieto et al. 2023, https://arxiv.org/abs/2303.06349; the gate is that of a block there.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.cell import States, Weights, factory, orthogonal
from recurrl.recurrent.linear import StateSpaceCell, Terms, disk, gated, initialize_disk


class LRU(StateSpaceCell):
    """A complex diagonal state, and a gate.

    Args:
        hidden_size: features of the output, H.
        state_size: complex numbers of the state, N.
    """

    def parameters(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """λ; B and D in one matrix; C, its real part before its imaginary one; and those of the gate."""
        hidden, size = self.hidden_size, self.state_size
        return {
            "log_decay": (size,),
            "log_phase": (size,),
            "weight_in": (2 * size + hidden, input_size),
            "weight_out": (hidden, 2 * size),
            "weight_gate": (hidden, hidden),
            "bias_gate": (hidden,),
        }

    def initialize(self, name: str, parameter: Tensor) -> None:
        """λ uniform in the unit disk, as in the paper's general form; orthogonal matrices, zero biases."""
        if name.startswith("log"):
            initialize_disk(name, parameter)
        else:
            orthogonal(parameter, 2 * self.state_size if name == "weight_in" else self.hidden_size)

    def coefficients(self, weights: Weights, x: Tensor) -> tuple[Terms, Tensor]:
        """``(λ, √(1 − |λ|²) ⊙ B·input)``, and ``D·input``."""
        a, gain = disk(weights)
        enters, skip = self.entering(weights, x, gain, None)
        return ((a, enters),), skip

    def read(self, weights: Weights, rest: Tensor, states: States) -> Tensor:
        """``y ⊙ σ(W·y + b)``."""
        y = functional.linear(states[0].flatten(-2), weights["weight_out"]) + rest
        return gated(y, functional.linear(y, weights["weight_gate"], weights["bias_gate"]))


make = factory(LRU)
