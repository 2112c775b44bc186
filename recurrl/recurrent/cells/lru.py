"""Linear recurrent unit: a diagonal complex recurrence between linear maps, then a gate.

    s' = λ ⊙ s + √(1 − |λ|²) ⊙ B·input    y = Re(C·s') + D·input    output = y ⊙ σ(W·y + b)

Orvieto et al. 2023, https://arxiv.org/abs/2303.06349; the gate comes from the paper's block around the unit.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.cell import States, Weights, factory_of
from recurrl.recurrent.linear import StateSpaceCell, Terms, disk_coefficients, gated, initialize_disk


class LRU(StateSpaceCell):
    """Linear recurrent unit, with one complex state.

    Args:
        hidden_size: features of the output, H.
        state_size: number of complex entries in the state, N.
    """

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The parameters of λ, those of the state space, and the gate's bias."""
        disk_shapes = dict.fromkeys(("log_decay", "log_phase"), (self.state_size,))
        return {**disk_shapes, **super().parameter_shapes(input_size), "bias_gate": (self.hidden_size,)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """λ uniform in the unit disk, as in the paper's general form; orthogonal matrices, zero biases."""
        if name.startswith("log"):
            initialize_disk(name, parameter)
        else:
            super().initialize(name, parameter)

    def coefficients(self, weights: Weights, x: Tensor) -> tuple[Terms, Tensor]:
        """``(λ, √(1 − |λ|²) ⊙ B·input)``, and ``D·input``."""
        a, gain = disk_coefficients(weights)
        enters, skip = self.entering(weights, x, gain, None)
        return ((a, enters),), skip

    def read(self, weights: Weights, read_input: Tensor, states: States) -> Tensor:
        """``y ⊙ σ(W·y + b)``."""
        y = functional.linear(states[0].flatten(-2), weights["weight_out"]) + read_input
        return gated(y, functional.linear(y, weights["weight_gate"], weights["bias_gate"]))


make = factory_of(LRU)
