"""The interface of a recurrent cell: its parameters, its states and one step.

Shape legend: B rows, T steps, I input size, X size of a projected input, O output size.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

Weights = Mapping[str, Tensor]
"""The parameters of one layer in one direction, under the names that :meth:`Cell.parameter_shapes` declares."""

States = tuple[Tensor, ...]
"""The states of one layer in one direction, in the order of :meth:`Cell.state_shapes`."""


class Cell(ABC):
    """The maths of one recurrent layer; stacking, directions, resets, stored states and sequences are added around it.

    A cell declares its ``parameter_shapes`` and ``state_shapes`` and computes one ``step``. It may also define
    ``project`` (the part of a step that depends on the input alone) and ``initialize``. Weights and states are passed
    as arguments: a cell holds no tensors. Autograd differentiates the step; for a custom derivative, use a
    ``torch.autograd.Function`` in it. Derive from :class:`ParallelCell` if all steps can be computed at once, from
    :class:`~recurrl.recurrent.linear.LinearCell` if the states follow a linear recurrence, and from
    :class:`~recurrl.recurrent.gated.GatedCell` if the cell is made of gates.

    Attributes:
        hidden_size: features of the output, O, unless it is projected.
        proj_size: size to which a gated cell projects its output; 0 for no projection.
        TORCH: the equivalent ``torch.nn`` module, which then holds the parameters; None if there is none.
    """

    hidden_size: int
    proj_size: int = 0
    TORCH: ClassVar[type[nn.RNNBase] | None] = None

    @property
    def name(self) -> str:
        """The cell's name in messages."""
        return type(self).__name__.lower()

    @abstractmethod
    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter of a layer with inputs ``[B, I]``."""

    @abstractmethod
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each state, under the suffix of its key: ``_h`` is stored as ``recurrent_state_h``.

        A shape is that of one row, without a batch dimension. Every state is zero when an episode starts.
        """

    @abstractmethod
    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        """Computes one step.

        Args:
            weights: the parameters by name.
            x_BX: what ``project`` returned; if the cell does not define it, the input ``[B, I]``.
            states: the states before the step, ``[B, ...]`` each.

        Returns:
            The output ``[B, O]``, and the states after the step.
        """

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        """The part of a step that depends on the input alone, ``[..., I]`` to ``[..., X]``; computed for many steps at
        once. Default: the input itself.
        """
        return x

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Sets a parameter's initial value in place. Default: torch's, uniform within ±1/√O."""
        bound = 1 / math.sqrt(self.hidden_size)
        nn.init.uniform_(parameter, -bound, bound)


class ParallelCell(Cell):
    """A cell that computes all steps at once."""

    @abstractmethod
    def parallel(self, weights: Weights, x_BTX: Tensor, starts_BT: Tensor, stored: States) -> tuple[Tensor, States]:
        """The outputs ``[B, T, O]`` and the states ``[B, T, ...]`` after all steps.

        A step begins with the state stored at that step where ``starts_BT`` is true, else with the state after the
        previous step. Stored states at other steps may hold anything, NaN included.
        """


def factory_of(cell: Callable[..., Cell]) -> Callable[[Any], Cell]:
    """The ``make(options)`` of a cell's module: passes each argument of ``cell`` the option of its name, if any."""
    names = inspect.signature(cell).parameters
    return lambda options: cell(**{name: getattr(options, name) for name in names if hasattr(options, name)})


def orthogonal(parameter: Tensor, rows: int) -> None:
    """Makes each block of ``rows`` rows orthogonal (Saxe et al. 2014), and sets vectors to zero."""
    if parameter.ndim < 2:
        nn.init.zeros_(parameter)
        return
    for block in parameter.split(rows):
        nn.init.orthogonal_(block)
