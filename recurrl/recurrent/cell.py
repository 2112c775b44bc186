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
"""The parameters of one layer in one direction, by the names of :meth:`Cell.parameters`."""

States = tuple[Tensor, ...]
"""The states of one layer in one direction, in the order of :meth:`Cell.states`."""


class Cell(ABC):
    """The maths of one layer. Layers, directions, resets, stored states and sequences are handled for it.

    A cell declares its ``parameters`` and ``states`` and computes one ``step``. It may also have ``project`` (what a
    step computes from its input alone) and ``initialize``. Weights and states are arguments: a cell holds no tensors.
    Autograd differentiates its step; a custom derivative is a ``torch.autograd.Function`` within it. A cell that can
    compute all steps at once is a :class:`ParallelCell`, one whose states are a linear recurrence a
    :class:`~recurrl.recurrent.linear.LinearCell`, a cell made of gates a :class:`~recurrl.recurrent.gated.GatedCell`.

    Attributes:
        hidden_size: features of the output, O.
        TORCH: the equivalent torch.nn module, if there is one; it then holds the parameters.
    """

    hidden_size: int
    TORCH: ClassVar[type[nn.RNNBase] | None] = None

    @property
    def name(self) -> str:
        """The cell's name in messages."""
        return type(self).__name__.lower()

    @abstractmethod
    def parameters(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter of a layer with inputs ``[B, I]``."""

    @abstractmethod
    def states(self) -> dict[str, tuple[int, ...]]:
        """The shape of each state, by the suffix of its name: ``_h`` is kept as ``recurrent_state_h``.

        The state of one row, without a batch dimension. Episodes start from zeros.
        """

    @abstractmethod
    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        """One step.

        Args:
            weights: the parameters by name.
            x_BX: what ``project`` returned; without one, the input ``[B, I]``.
            states: before the step, ``[B, ...]`` each.

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
        """The outputs ``[B, T, O]`` and the states ``[B, T, ...]`` of all steps.

        A step begins with the stored state at that step where ``starts`` is true, else with the state after the
        previous step. At other steps stored states may hold anything, NaN included.
        """


def factory_of(cell: Callable[..., Cell]) -> Callable[[Any], Cell]:
    """``make(options)`` of a cell's module: passes the options of the cell's arguments; the others keep defaults."""
    names = inspect.signature(cell).parameters

    def make(options: Any) -> Cell:
        return cell(**{name: getattr(options, name) for name in names if hasattr(options, name)})

    return make


def orthogonal(parameter: Tensor, rows: int) -> None:
    """Makes each block of ``rows`` rows orthogonal (Saxe et al. 2014), and sets vectors to zero."""
    if parameter.ndim < 2:
        nn.init.zeros_(parameter)
        return
    for block in parameter.split(rows):
        nn.init.orthogonal_(block)
