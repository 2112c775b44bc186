"""Cells made of gates: each a linear map of the input plus one of the state, which a cell combines.

GRU and LSTM are such cells. In return for that form they get torch's layout of parameters, one matmul for the input
projections of all steps, and optionally a hand-written derivative and torch's fused kernels.

Shape legend: B rows, T steps, P steps of all rows, I input size, H hidden size, O output size (H, or that of the
projection), K gates, G gate rows (K × H), A gates that memory is kept for (see :class:`HandWritten`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeGuard

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.cell import Cell, States, Weights

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
"""Names of the parameters, in torch's order; a cell may have fewer."""


class GatedCell(Cell):
    """A cell that computes its states from ``x @ w_ihᵀ + b_ih`` and ``h @ w_hhᵀ + b_hh``.

    Args:
        hidden_size: features of each state, H.
        bias: has the two biases.
        proj_size: features of the output and the first state, which a further matrix projects; 0 for no projection.
    """

    GATES: ClassVar[int]
    """Rows of each weight matrix, in units of the hidden size."""

    STATES: ClassVar[tuple[str, ...]] = ("",)
    """Suffixes of the state names; the first state is the cell's output."""

    RECURRENT: ClassVar[bool] = True
    """False for a cell without a recurrent projection: it has no such weights, and ``h_gates`` is None."""

    def __init_subclass__(cls) -> None:
        for base in cls.__bases__:
            if getattr(base, "TORCH", None) is not None:
                raise TypeError(
                    f"{cls.__name__} cannot derive from {base.__name__}, whose kernels and derivative would ignore "
                    f"what it changes. Derive from GatedCell and write its own activate."
                )

    def __init__(self, hidden_size: int, bias: bool = True, proj_size: int = 0) -> None:
        self.hidden_size, self.bias, self.proj_size = hidden_size, bias, proj_size

    @abstractmethod
    def activate(self, x_gates_BG: Tensor, h_gates_BG: Any, states_BH: States) -> States:
        """The new states from the two projections; differentiable by autograd."""

    def parameters(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The weights that there are of :data:`WEIGHTS`."""
        rows, output = self.GATES * self.hidden_size, self.proj_size or self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, input_size)}
        if self.RECURRENT:
            shapes["weight_hh"] = (rows, output)
        if self.bias:
            shapes |= {name.replace("weight", "bias"): (rows,) for name in shapes}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        return shapes

    def states(self) -> dict[str, tuple[int, ...]]:
        """Vectors of ``hidden_size``; the first may be projected."""
        first, *further = self.STATES
        return {first: (self.proj_size or self.hidden_size,), **dict.fromkeys(further, (self.hidden_size,))}

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        """The input projection of all gates, ``[..., G]``."""
        return functional.linear(x, weights["weight_ih"], weights.get("bias_ih"))

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        """The recurrent projection, the gates, and the output projection."""
        h_gates_BG = self.project_state(weights, states[0]) if self.RECURRENT else None
        states = self.activate(x_BX, h_gates_BG, states)
        w_hr = weights.get("weight_hr")
        if w_hr is not None:
            states = (functional.linear(states[0], w_hr), *states[1:])
        return states[0], states

    def project_state(self, weights: Weights, h_BO: Tensor) -> Tensor:
        """The recurrent projection of all gates, ``[B, G]``."""
        return functional.linear(h_BO, weights["weight_hh"], weights.get("bias_hh"))


class HandWritten(Protocol):
    """A cell that also has an in-place step and derivative, for loops outside autograd.

    In their shared memory ``gates [P, A × H]`` each gate holds the sum of its two projections, except the last
    ``SPLIT_GATES`` gates, whose projections stay separate. First come the recurrent projections of these gates, then
    the sums, then their input projections. So the first ``GATES`` of the A columns take the recurrent matmul, and the
    last ``GATES`` that of the input.
    """

    GATES: int

    SPLIT_GATES: int
    """Number of final gates that keep their two projections separate."""

    def forward_views(self, gates_PA: Tensor) -> tuple[Tensor, ...]:
        """The columns that ``forward_step`` works on, sliced once rather than at every step."""
        ...

    def forward_step(
        self, views: tuple[Tensor, ...], states_BH: tuple[Tensor, ...], out_states_BH: tuple[Tensor, ...]
    ) -> None:
        """One step into preallocated memory. ``views`` are one step of ``forward_views``. On return ``gates`` holds
        what ``derivatives`` reads.
        """
        ...

    def derivatives(
        self, gates_PA: Tensor, before_PH: tuple[Tensor, ...], after_PH: tuple[Tensor, ...], factors_PAH: Tensor
    ) -> tuple[Tensor, ...]:
        """All gradient-independent factors of the backward pass, for many steps at once.

        Args:
            gates_PA: as the forward pass left them.
            before_PH: the states before each step.
            after_PH: the states after each step; do not read the first, which may be projected.
            factors_PAH: receives the factors of the gates, ``[P, A, H]``.

        Returns:
            Any other factors, ``[P, 1, H]`` each.
        """
        ...

    def backward_views(self, factors_PAH: Tensor, others: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The columns of ``derivatives`` that ``backward_step`` works on."""
        ...

    def backward_step(self, views: tuple[Tensor, ...], grads_B1H: tuple[Tensor, ...], grad_before_B1H: Tensor) -> None:
        """One step back, in place.

        Args:
            views: one step of ``backward_views``. The gates' factors become the projections' gradients.
            grads_B1H: gradients of the states after the step. All but the first are overwritten with those of the
                states before it.
            grad_before_B1H: gradient of the first state before the step. Adds all contributions except that of the
                recurrent matmul.
        """
        ...


class Fused(Protocol):
    """A cell with a fused torch kernel."""

    HOLD: tuple[float, ...] | None
    """Added to each gate's input projection to keep the second state unchanged and output zero; None if the output is
    the only state.
    """

    READ_OUT: tuple[float, ...] | None
    """Full projection of each gate that sets both states to the second state times ``READ_OUT_SCALE``; None where
    ``HOLD`` is.
    """

    READ_OUT_SCALE: float
    """Small enough that the output's tanh is the identity."""

    CLEAR: tuple[float, ...] | None
    """Added to each gate's input projection to zero all states; None where ``HOLD`` is."""

    def fused(
        self, x_TBI: Tensor, states_1BH: tuple[Tensor, ...], weights: list[Tensor], has_biases: bool, train: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Runs the layer with torch's kernel, time first: outputs ``[T, B, H]`` and last states ``[1, B, H]``."""
        ...


# hasattr rather than isinstance, which torch.compile cannot trace for protocols.
def is_hand_written(cell: object) -> TypeGuard[HandWritten]:
    """True if the cell has an in-place step and derivative."""
    return hasattr(cell, "backward_step")


def is_fused(cell: object) -> TypeGuard[Fused]:
    """True if torch has a fused kernel for the cell."""
    return hasattr(cell, "fused")


def into(out: Tensor, operation: Callable[..., Tensor], *arguments: Tensor, **others: float) -> Tensor:
    """Writes ``operation(*arguments)`` to ``out``, which may be non-contiguous: torch.compile rejects that as
    ``out=``.
    """
    if torch.compiler.is_compiling():
        return out.copy_(operation(*arguments, **others))
    return operation(*arguments, **others, out=out)


# Below this size tanh itself is faster than the three operations that replace it.
_FEW_ELEMENTS = 1024
_MINUS_ONE = torch.tensor(-1.0)


def tanh_into(value: Tensor, out: Tensor) -> Tensor:
    """Writes ``tanh(value)`` to ``out``, computed as ``2σ(2·value) − 1`` where that is faster.

    torch's tanh on a CPU takes about seven times as long as its sigmoid. The replacement is accurate to one ulp of 1,
    like any sum of order 1.
    """
    if value.numel() < _FEW_ELEMENTS or value.device.type != "cpu" or torch.compiler.is_compiling():
        return into(out, torch.tanh, value)
    torch.add(value, value, out=out).sigmoid_()
    return torch.add(_MINUS_ONE, out, alpha=2, out=out)
