"""The recurrent cells: one module a cell, holding its maths and nothing else.

A cell is a *module* with the attributes of :class:`Cell`. Adding one is adding a file here; ``load_cell`` finds it
by name.

Shape legend: B rows, P steps of all rows, H hidden size, K gates, G gate rows (K × H).
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Protocol, cast

from torch import Tensor


class Cell(Protocol):
    """The maths of one recurrent cell, for one step of one layer.

    The input projection ``x @ w_ihᵀ + b_ih`` and the recurrent projection ``h @ w_hhᵀ + b_hh`` are the same for every
    cell and are computed by the backends; a cell says what happens between the two.
    """

    MODE: str
    """The name torch.nn gives the cell (``nn.RNNBase(mode=...)``)."""

    GATES: int
    """Rows of each weight matrix, in units of the hidden size."""

    STATES: tuple[str, ...]
    """Suffixes of the states' names; the first state is the cell's output."""

    def activate(self, x_gates_BG: Tensor, h_gates_BG: Tensor, states_BH: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One step, in a form that autograd differentiates: the new states."""
        ...

    def forward_views(self, x_gates_PG: Tensor, gates_PG: Tensor, extra_PH: Tensor) -> tuple[Tensor, ...]:
        """The columns of the three memories that ``forward_step`` works on, so that they are cut once, not each step.

        ``gates`` will hold the recurrent projection when a step begins; after it, ``gates`` and ``extra`` hold what
        ``derivatives`` reads.
        """
        ...

    def forward_step(
        self, views: tuple[Tensor, ...], states_BH: tuple[Tensor, ...], out_states_BH: tuple[Tensor, ...]
    ) -> None:
        """The same step without autograd, written into given memory. ``views`` are one step of ``forward_views``."""
        ...

    def derivatives(self, gates_PG: Tensor, extra_PH: Tensor, states_PH: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Everything in the backward pass that does not depend on a gradient, for all steps at once."""
        ...

    def backward_step(
        self, grad_states_BH: tuple[Tensor, ...], derivatives: tuple[Tensor, ...], out: Tensor | None
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        """One step back.

        Returns the gradient ``[B, K, H]`` of the recurrent projection (in ``out`` if given); that of the incoming first
        state by every path but the projection, None if there is no other; those of the further states.
        """
        ...

    def input_gradient(self, grad_gates_PG: Tensor, grad_output_PH: Tensor, derivatives: tuple[Tensor, ...]) -> Tensor:
        """The gradient of the input projection, for all steps at once, from that of the recurrent projection."""
        ...

    def fused(
        self, x: Tensor, batch_sizes: Tensor | None, states_BH: tuple[Tensor, ...], weights: list[Tensor], train: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The whole layer by torch's own fused kernel: outputs, and the states after the last step."""
        ...


@cache
def cell_names() -> tuple[str, ...]:
    """The names of the cells there are."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


@cache
def load_cell(name: str) -> Cell:
    """The cell called ``name``.

    Raises:
        ValueError: there is no such cell.
    """
    if name not in cell_names():
        raise ValueError(f"There is no cell {name!r}. Choose one of: {', '.join(cell_names())}.")
    return cast(Cell, importlib.import_module(f"{__name__}.{name}"))
