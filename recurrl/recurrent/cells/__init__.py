"""The recurrent cells: one module a cell, holding its maths and nothing else.

A cell is a *module* with the attributes of :class:`Cell`, and of the further protocols below where it has more to
offer. Adding one is adding a file here and a yaml; ``load_cell`` finds it by name. ``activate`` alone is enough for the
``reference`` and ``scan`` backends.

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
    cell and are computed by the backends; a cell says what happens between the two.
    """

    __name__: str
    """That of the module."""

    GATES: int
    """Rows of each weight matrix, in units of the hidden size."""

    STATES: tuple[str, ...]
    """Suffixes of the states' names; the first state is the cell's output."""

    RECURRENT: bool
    """Whether there is a recurrent projection. Without one, its weights do not exist and ``h_gates`` is None."""

    TORCH: type[nn.RNNBase] | None
    """The module of torch.nn that computes the same, if there is one. It then holds the parameters."""

    def activate(
        self, x_gates_BG: Tensor, h_gates_BG: Tensor | None, states_BH: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """One step, in a form that autograd differentiates: the new states."""
        ...


class HandWritten(Protocol):
    """A cell whose step and derivative are also written in place, for loops that autograd does not see.

    In the memory that these share, ``gates [P, A × H]``, each gate has the sum of both of its projections, but for the
    last ``APART`` gates, whose projections the cell needs by themselves. First come the recurrent ones of these gates,
    then the sums, and then the input projections of these gates: so the first ``GATES`` of the A take the recurrent
    product, and the last ``GATES`` that of the input.
    """

    GATES: int

    APART: int
    """How many of the last gates keep their two projections apart."""

    def forward_views(self, gates_PA: Tensor) -> tuple[Tensor, ...]:
        """The columns that ``forward_step`` works on, so that they are cut once, not each step."""
        ...

    def forward_step(
        self, views: tuple[Tensor, ...], states_BH: tuple[Tensor, ...], out_states_BH: tuple[Tensor, ...]
    ) -> None:
        """One step, written into given memory. ``views`` are one step of ``forward_views``; when it returns, ``gates``
        holds what ``derivatives`` reads.
        """
        ...

    def derivatives(
        self, gates_PA: Tensor, entered_PH: tuple[Tensor, ...], left_PH: tuple[Tensor, ...], factors_PAH: Tensor
    ) -> tuple[Tensor, ...]:
        """All factors of the backward pass that hold no gradient, for many steps at once.

        Args:
            gates_PA: as the forward pass left them.
            entered_PH: the states that entered each step.
            left_PH: the states after each step; the first may be projected and is not to be read.
            factors_PAH: takes the factors of the gates, as ``[P, A, H]``.

        Returns:
            Any others, ``[P, 1, H]`` each.
        """
        ...

    def backward_views(self, factors_PAH: Tensor, others: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The columns of ``derivatives`` that ``backward_step`` works on."""
        ...

    def backward_step(self, views: tuple[Tensor, ...], grads_B1H: tuple[Tensor, ...], onward_B1H: Tensor) -> None:
        """One step back, in place.

        Args:
            views: one step of ``backward_views``. The factors of the gates become the gradients of the projections.
            grads_B1H: the gradients of the states after the step. Those of all but the first become those of the
                states before it.
            onward_B1H: the gradient of the first state before the step. To it is added what comes by any other path
                than the recurrent product.
        """
        ...


class Fused(Protocol):
    """A cell that torch has a fused kernel for."""

    HOLD: tuple[float, ...] | None
    """What to add to each gate's input projection so that the further state stays as it is and the output is zero; None
    when the output is the only state, so that nobody needs that.
    """

    SHOW: tuple[float, ...] | None
    """What each gate's whole projection must be so that the output is the further state times ``SHOWN``, and this is
    all that is left of the states; None where ``HOLD`` is.
    """

    SHOWN: float
    """So small that the output's hyperbolic tangent is not seen."""

    CLEAR: tuple[float, ...] | None
    """What to add to each gate's input projection so that all states are zero; None where ``HOLD`` is."""

    def fused(
        self, x_TBI: Tensor, states_1BH: tuple[Tensor, ...], weights: list[Tensor], has_biases: bool, train: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The whole layer by torch's kernel, time first: outputs ``[T, B, H]`` and the last states ``[1, B, H]``."""
        ...


class ParallelInTime(Protocol):
    """A cell whose states after all steps can be computed without going through them one by one."""

    def parallel(self, x_gates_BTG: Tensor, starts_BT: Tensor, stored_BTH: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Every state after every step, ``[B, T, H]``; where ``starts`` is set the stored state enters."""
        ...


# Asked by name, not by isinstance, which torch.compile does not see through for protocols.
def is_hand_written(cell: object) -> TypeGuard[HandWritten]:
    """Whether the cell has a step and a derivative in place."""
    return hasattr(cell, "backward_step")


def is_fused(cell: object) -> TypeGuard[Fused]:
    """Whether torch has a fused kernel for the cell."""
    return hasattr(cell, "fused")


def is_parallel_in_time(cell: object) -> TypeGuard[ParallelInTime]:
    """Whether the cell has a parallel form."""
    return hasattr(cell, "parallel")


def into(out: Tensor, operation: Callable[..., Tensor], *arguments: Tensor, **others: float) -> Tensor:
    """``operation(*arguments)`` written to ``out``, which may be a view with gaps: torch.compile refuses those as
    ``out=``.
    """
    if torch.compiler.is_compiling():
        return out.copy_(operation(*arguments, **others))
    return operation(*arguments, **others, out=out)


# Below, tanh itself is faster than the three operations of its other form.
_FEW_ELEMENTS = 1024
_MINUS_ONE = torch.tensor(-1.0)


def tanh_into(value: Tensor, out: Tensor) -> Tensor:
    """``tanh(value)`` in given memory, by ``2σ(2·value) − 1`` where that is faster.

    torch's tanh on a CPU takes about seven times as long as its sigmoid. The other form is right to one unit in the
    last place of 1, as sums of order 1 are anyway.
    """
    if value.numel() < _FEW_ELEMENTS or value.device.type != "cpu" or torch.compiler.is_compiling():
        return into(out, torch.tanh, value)
    torch.add(value, value, out=out).sigmoid_()
    return torch.add(_MINUS_ONE, out, alpha=2, out=out)


@cache
def cell_names() -> tuple[str, ...]:
    """The names of the cells there are."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


# Not functools.cache, which torch.compile does not see through.
_loaded: dict[str, Cell] = {}


def load_cell(name: str) -> Cell:
    """The cell called ``name``.

    Raises:
        ValueError: there is no such cell.
    """
    if name not in _loaded:
        if name not in cell_names():
            raise ValueError(f"There is no cell {name!r}. Choose one of: {', '.join(cell_names())}.")
        _loaded[name] = cast(Cell, importlib.import_module(f"{__name__}.{name}"))
    return _loaded[name]
