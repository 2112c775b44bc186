"""The recurrent cells: one module each, holding its maths and nothing else.

A cell is a *module* with the attributes of :class:`Cell`, and optionally those of the further protocols below. To add
one, add a file here and a yaml; ``load_cell`` finds it by name. ``activate`` alone is enough for the ``reference`` and
``scan`` backends.

Shape legend: B rows, T steps, P steps of all rows, H hidden size, K gates, G gate rows (K × H).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Protocol, TypeGuard, cast

import torch
from torch import Tensor, nn


class Cell(Protocol):
    """The maths of one recurrent cell, for one step of one layer.

    The input projection ``x @ w_ihᵀ + b_ih`` and the recurrent projection ``h @ w_hhᵀ + b_hh`` are the same for every
    cell and are computed by the backends; a cell defines the rest of the step.
    """

    __name__: str
    """The module's name."""

    GATES: int
    """Rows of each weight matrix, in units of the hidden size."""

    STATES: tuple[str, ...]
    """Suffixes of the state names; the first state is the cell's output."""

    RECURRENT: bool
    """False for a cell without a recurrent projection: it has no such weights, and ``h_gates`` is None."""

    TORCH: type[nn.RNNBase] | None
    """The equivalent torch.nn module, if there is one; it then holds the parameters."""

    def activate(
        self, x_gates_BG: Tensor, h_gates_BG: Tensor | None, states_BH: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """One autograd-differentiable step; returns the new states."""
        ...


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


class ParallelInTime(Protocol):
    """A cell whose states can be computed in parallel over time."""

    def parallel(self, x_gates_BTG: Tensor, starts_BT: Tensor, stored_BTH: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Every state after every step, ``[B, T, H]``; starts from the stored state where ``starts`` is set."""
        ...


# hasattr rather than isinstance, which torch.compile cannot trace for protocols.
def is_hand_written(cell: object) -> TypeGuard[HandWritten]:
    """True if the cell has an in-place step and derivative."""
    return hasattr(cell, "backward_step")


def is_fused(cell: object) -> TypeGuard[Fused]:
    """True if torch has a fused kernel for the cell."""
    return hasattr(cell, "fused")


def is_parallel_in_time(cell: object) -> TypeGuard[ParallelInTime]:
    """True if the cell has a parallel form."""
    return hasattr(cell, "parallel")


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


@cache
def cell_names() -> tuple[str, ...]:
    """Names of all cells."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


# Not functools.cache: torch.compile cannot trace it.
_loaded: dict[str, Cell] = {}


def load_cell(name: str) -> Cell:
    """Returns the cell called ``name``.

    Raises:
        ValueError: no such cell.
    """
    if name not in _loaded:
        if name not in cell_names():
            raise ValueError(f"Unknown cell {name!r}. Choose one of: {', '.join(cell_names())}.")
        _loaded[name] = cast(Cell, importlib.import_module(f"{__name__}.{name}"))
    return _loaded[name]
