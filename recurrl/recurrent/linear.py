"""Cells whose states follow a linear recurrence, all computed by the same scan over time.

Shape legend: B rows, T steps, I input size, X size of a projected input, N complex entries of a state, H hidden size, O
output size.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.cell import ParallelCell, States, Weights, orthogonal
from recurrl.recurrent.linear_recurrence import complex_mul, linear_recurrence

Recurrence = Callable[[Tensor, Tensor, Tensor, Tensor, int | None], Tensor]
"""An implementation of :func:`~recurrl.recurrent.linear_recurrence.linear_recurrence`."""

Terms = tuple[tuple[Tensor, Tensor], ...]
"""The coefficients a and b of each state."""


class LinearCell(ParallelCell):
    """A cell whose states follow ``s' = a ⊙ s + b``, with coefficients that depend on the input alone.

    It defines ``coefficients`` and ``read``; its step and its parallel form follow from them.

    Attributes:
        COMPLEX: the states are complex: the first dimension of each, of size 2, holds the real and imaginary parts.
    """

    COMPLEX: ClassVar[bool] = False

    @abstractmethod
    def coefficients(self, weights: Weights, x: Tensor) -> tuple[Terms, Tensor]:
        """``(a, b)`` of each state, and what ``read`` needs of the input, for one step or many: x is ``[..., X]``.

        Each b is ``[..., *shape]``. Its a has as many dimensions, with size one along those in which all entries are
        equal; if a is the same at every step, it may have only the state's own dimensions.
        """

    @abstractmethod
    def read(self, weights: Weights, read_input: Tensor, states: States) -> Tensor:
        """The output ``[..., O]``, from the states after the step and the second result of ``coefficients``."""

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        """Computes one step of the recurrence, and the output."""
        terms, read_input = self.coefficients(weights, x_BX)
        each = zip(terms, states, self._pairs(), strict=True)
        states = tuple([complex_mul(a, state, pair) + b for (a, b), state, pair in each])
        return self.read(weights, read_input, states), states

    def parallel(self, weights: Weights, x_BTX: Tensor, starts_BT: Tensor, stored: States) -> tuple[Tensor, States]:
        """Computes all steps at once, by :func:`~recurrl.recurrent.linear_recurrence.linear_recurrence`."""
        return self.scan(linear_recurrence, weights, x_BTX, starts_BT, stored)

    def scan(
        self, recurrence: Recurrence, weights: Weights, x_BTX: Tensor, starts_BT: Tensor, stored: States
    ) -> tuple[Tensor, States]:
        """Like ``parallel``, with another implementation of the recurrence."""
        terms, read_input = self.coefficients(weights, x_BTX)
        each = zip(terms, stored, self._pairs(), strict=True)
        states = tuple([recurrence(a, b, starts_BT, state, pair) for (a, b), state, pair in each])
        return self.read(weights, read_input, states), states

    def _pairs(self) -> list[int | None]:
        """The dimension of each state that holds real and imaginary parts, counted from the end; None if real."""
        return [-len(shape) if self.COMPLEX else None for shape in self.state_shapes().values()]


class StateSpaceCell(LinearCell):
    """A linear cell with one complex state, which ``B·input`` enters and ``D·input`` bypasses.

    Its parameters are ``weight_in``, with B ``[2N, I]`` (its real part first) above D ``[H, I]``; ``weight_out``,
    ``[Re C, −Im C]``; and ``weight_gate``, the matrix of the output's gate.

    Args:
        hidden_size: features of the output, H.
        state_size: number of complex entries in the state, N.
    """

    COMPLEX = True

    def __init__(self, hidden_size: int, state_size: int = 32) -> None:
        self.hidden_size, self.state_size = hidden_size, state_size

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """B and D in one matrix, C, and the gate's matrix."""
        hidden, size = self.hidden_size, self.state_size
        return {
            "weight_in": (2 * size + hidden, input_size),
            "weight_out": (hidden, 2 * size),
            "weight_gate": (hidden, hidden),
        }

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """One state, of real and imaginary parts."""
        return {"": (2, self.state_size)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Orthogonal matrices, zero biases."""
        orthogonal(parameter, 2 * self.state_size if name == "weight_in" else self.hidden_size)

    def entering(self, weights: Weights, x: Tensor, gain: Tensor, pair: int | None) -> tuple[Tensor, Tensor]:
        """``gain ⊙ B·input`` ``[..., 2, N]`` and ``D·input`` ``[..., H]``, in one product.

        The gain is ``[N]``, or complex with its real and imaginary parts along the dimension ``pair``.
        """
        sizes = (2 * self.state_size, self.hidden_size)
        w_in, w_skip = weights["weight_in"].split(sizes)
        scaled = complex_mul(gain.unsqueeze(-1), w_in.unflatten(0, (2, self.state_size)), pair)
        enters, skip = functional.linear(x, torch.cat((scaled.flatten(0, 1), w_skip))).split(sizes, -1)
        return enters.unflatten(-1, (2, self.state_size)), skip


def gated(y: Tensor, x: Tensor) -> Tensor:
    """``y ⊙ σ(x)``, with gradients that stay accurate where σ is near 1: autograd's factor 1 − σ would lose digits."""
    return y * functional.logsigmoid(x).exp()


def disk_coefficients(weights: Weights) -> tuple[Tensor, Tensor]:
    """The coefficients ``λ = exp(−exp(log_decay) + i·exp(log_phase))`` ``[2, N]``, and ``√(1 − |λ|²)`` ``[N]``, which
    keeps the scale of a state that white noise enters (Orvieto et al. 2023).
    """
    decay, phase = weights["log_decay"].exp(), weights["log_phase"].exp()
    return torch.exp(-decay) * torch.stack((phase.cos(), phase.sin())), (-torch.expm1(-2 * decay)).sqrt()


def initialize_disk(name: str, parameter: Tensor) -> None:
    """Sets a parameter of :func:`disk_coefficients` so that λ is uniform in the unit disk."""
    if name == "log_decay":
        parameter.copy_((-0.5 * torch.rand_like(parameter).clamp(min=1e-6).log()).log())
    else:
        nn.init.uniform_(parameter, 1e-3 * 2 * math.pi, 2 * math.pi).log_()
