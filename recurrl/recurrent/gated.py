"""Gated cells: each gate is a linear map of the input plus a linear map of the state; the cell combines the gates.

GRU and LSTM are gated cells. The common form gives them torch's parameter layout, one matmul for the input projections
of all steps, and optionally a hand-written derivative and torch's fused kernels.

Shape legend: B rows, T steps, P steps of all rows, X size of a projected input, H hidden size, O output size (H, or
that of the projection), G gate rows (H of each gate), A columns of the gate buffer (see :class:`AnalyticCell`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.cell import Cell, States, Weights


class GatedCell(Cell):
    """A cell that computes its states from ``x @ w_ihᵀ + b_ih`` and ``h @ w_hhᵀ + b_hh``.

    Args:
        hidden_size: features of each state, H.
        bias: whether the cell has the two biases.
        proj_size: size to which a further matrix projects the output and the first state; 0 for no projection.

    Attributes:
        GATES: rows of each weight matrix, in units of the hidden size.
        STATES: suffixes of the state names; the first state is the cell's output.
    """

    GATES: ClassVar[int]
    STATES: ClassVar[tuple[str, ...]] = ("",)
    bias: bool = True

    def __init_subclass__(cls) -> None:
        if not isinstance(cls.STATES, tuple) or not 0 < len(set(cls.STATES)) == len(cls.STATES):
            raise TypeError(
                f'{cls.__name__}.STATES must be a tuple of different suffixes (got {cls.STATES!r}). Write ("_h",).'
            )
        for base in cls.__bases__:
            if getattr(base, "TORCH", None) is not None:
                raise TypeError(
                    f"{cls.__name__} cannot derive from {base.__name__}, whose kernels and derivative would ignore "
                    f"what it changes. Derive from GatedCell or AnalyticCell and write its activate."
                )

    def __init__(self, hidden_size: int, bias: bool = True, proj_size: int = 0) -> None:
        self.hidden_size, self.bias, self.proj_size = hidden_size, bias, proj_size

    @abstractmethod
    def activate(self, x_gates_BG: Tensor, h_gates_BG: Tensor, states_BH: States) -> States:
        """The new states from the two projections; differentiable by autograd.

        Args:
            x_gates_BG: the projection of the input, ``[B, GATES * H]``.
            h_gates_BG: the projection of the first state, of the same shape.
            states_BH: the states before the step, in the order of ``STATES``.

        Returns:
            The states after the step, a tuple in the same order. The first is also the cell's output.
        """

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The parameters with torch's names, in its order."""
        rows, output = self.GATES * self.hidden_size, self.proj_size or self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, input_size), "weight_hh": (rows, output)}
        if self.bias:
            shapes |= dict.fromkeys(("bias_ih", "bias_hh"), (rows,))
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        return shapes

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """A vector of ``hidden_size`` for each state; the first has ``proj_size`` if there is a projection."""
        first, *further = self.STATES
        return {first: (self.proj_size or self.hidden_size,), **dict.fromkeys(further, (self.hidden_size,))}

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        """The input projection of all gates, ``[..., G]``."""
        return functional.linear(x, weights["weight_ih"], weights.get("bias_ih"))

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        """The recurrent projection, the gates, and the output projection."""
        states = self.activate(x_BX, self.project_state(weights, states[0]), states)
        if self.proj_size:
            states = (functional.linear(states[0], weights["weight_hr"]), *states[1:])
        return states[0], states

    def project_state(self, weights: Weights, h_BO: Tensor) -> Tensor:
        """The recurrent projection of all gates, ``[B, G]``."""
        return functional.linear(h_BO, weights["weight_hh"], weights.get("bias_hh"))


class AnalyticCell(GatedCell):
    """A gated cell with an in-place step and a hand-written derivative, for loops outside autograd.

    Both work on one gate buffer ``[P, A]`` of ``GATES + SPLIT_GATES`` blocks of H columns. A gate's block holds the
    sum of its two projections, but the last ``SPLIT_GATES`` gates keep theirs apart: the buffer begins with their
    recurrent projections, then come the sums of the other gates, and last their input projections. So the recurrent
    matmul writes the first ``GATES`` blocks, and the matmul of the input the last ``GATES``.

    Attributes:
        SPLIT_GATES: number of final gates that keep their two projections separate.
    """

    SPLIT_GATES: ClassVar[int]

    @abstractmethod
    def forward_step(self, gates_BA: Tensor, states: Sequence[Tensor], out_states: Sequence[Tensor]) -> None:
        """Writes ``out_states`` from the projections in ``gates_BA``, and overwrites these for ``derivatives``."""

    @abstractmethod
    def derivatives(
        self, gates_PA: Tensor, before_PH: Sequence[Tensor], after_PH: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All gradient-independent factors of the backward pass, for many steps at once.

        Args:
            gates_PA: the gates as the forward pass left them.
            before_PH: the states before each step.
            after_PH: the states after each step.

        Returns:
            The factors of the gates, ``[P, A / H, H]``, and any others, ``[P, 1, H]`` each.
        """

    @abstractmethod
    def backward_step(self, factors: tuple[Tensor, ...], grads_B1H: Sequence[Tensor], grad_before_B1H: Tensor) -> None:
        """One step back, in place.

        Args:
            factors: the factors of this step. Those of the gates are overwritten with the gradients of the projections.
            grads_B1H: gradients of the states after the step. All but the first are overwritten with those of the
                states before it.
            grad_before_B1H: gradient of the first state before the step. All contributions except that of the
                recurrent matmul are added to it.
        """
