"""One layer of a cell with a hand-written derivative, in one direction.

Shape legend: B rows, T steps, P steps of all rows (B·T), I input size, H hidden size, X size of a state, A columns of
the gate buffer (see :class:`~recurrl.recurrent.gated.AnalyticCell`): the recurrent product goes into the first of them,
the product of the input into the last.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from recurrl.recurrent.cell import States, Weights
from recurrl.recurrent.cells import make_cell
from recurrl.recurrent.gated import AnalyticCell
from recurrl.recurrent.operators import Kernel, Tensors
from recurrl.recurrent.segments import Segments

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
"""Names of the parameters, in the order of a kernel's inputs."""


class LayerInputs(NamedTuple):
    """The inputs that both passes of a layer read.

    Attributes:
        weights: a tensor or None for each of :data:`WEIGHTS`.
        x_BTI: the input.
        segments: the rows' segments.
        stored: the stored states ``[B, T, ...]``.
        split: number of leading columns that the product of the input skips: they hold the split gates' recurrent
            product.
    """

    weights: Tensors
    x_BTI: Tensor
    segments: Segments
    stored: Tensors
    split: int

    @property
    def columns(self) -> slice:
        """The columns of the input's product."""
        return slice(self.split, self.split + len(self.weights[0]))

    def project(self, x_PI: Tensor, gates_PA: Tensor) -> Tensor:
        """The input projections plus all biases, to which the caller adds the recurrent product.

        They are written to ``gates_PA``, or to new memory if it is empty.
        """
        w_ih, w_hh, b_ih, b_hh = self.weights
        sums_PA = gates_PA if len(gates_PA) else x_PI.new_empty(len(x_PI), gates_PA.shape[1])
        bias_A = x_PI.new_zeros(gates_PA.shape[1])
        if b_ih is not None:
            bias_A[self.columns] += b_ih
            bias_A[: len(w_hh)] += b_hh.roll(self.split, 0)
        sums_PA[:, : self.split] = bias_A[: self.split]
        torch.addmm(bias_A[self.columns], x_PI, w_ih.t(), out=sums_PA[:, self.columns])
        return sums_PA

    def write_gradients(self, x_PI: Tensor, before_PX: Tensor, grad_PA: Tensor, grads: Tensors) -> None:
        """Writes the weights' gradients, from the projections' gradients, the input and the state before each step."""
        grad_w_ih, grad_w_hh, grad_b_ih, grad_b_hh, *_ = grads
        rows = len(grad_w_hh)
        torch.mm(grad_PA[:, self.columns].t(), x_PI, out=grad_w_ih)
        grad_w_hh.copy_((grad_PA[:, :rows].t() @ before_PX).roll(-self.split, 0))
        if len(grad_b_ih):
            grad_A = grad_PA.sum(0)
            grad_b_ih.copy_(grad_A[self.columns])
            grad_b_hh.copy_(grad_A[:rows].roll(-self.split, 0))


class LayerKernel(Kernel):
    """The forward and backward pass of a layer on one backend.

    The inputs are :data:`WEIGHTS`, x, ``is_init``, and the stored states. The outputs are the states after every step,
    and the gates, which are empty unless they are kept.

    Args:
        cell: a cell, or the name of a packaged cell; ``torch.compile`` requires a packaged cell.
        precision: concrete matmul precision, for a backend that controls it.
    """

    DIFFERENTIATED = len(WEIGHTS)

    def __init__(self, cell: AnalyticCell | str, precision: str = "") -> None:
        # A packaged cell reads the sizes from the tensors that it gets, so that any hidden size will do here.
        self.cell = cast(AnalyticCell, make_cell(cell, 1)) if isinstance(cell, str) else cell
        self.precision, self.results = precision, len(self.cell.STATES)
        super().__init__(self.cell.name, precision)

    def sequence(self, x_BTI: Tensor, segments: Segments, stored: States, weights: Weights) -> tuple[Tensor, States]:
        """The output ``[B, T, H]`` and the states of every step.

        Args:
            x_BTI: the input.
            segments: the rows' segments.
            stored: the stored states, read only where segments start.
            weights: the parameters by name.
        """
        states = self.run(*map(weights.get, WEIGHTS), x_BTI, segments.is_init_BT, *stored)
        return states[0], states

    def outputs(self, inputs: Tensors, keep: bool) -> list[Tensor]:
        """Allocates the outputs."""
        _, w_hh, _, _, x_BTI, _, *stored = inputs
        columns = (self.cell.GATES + self.cell.SPLIT_GATES) * w_hh.shape[1]
        states = [x_BTI.new_empty(state.shape) for state in stored]
        return [*states, x_BTI.new_empty(x_BTI.shape[0] * x_BTI.shape[1] if keep else 0, columns)]

    def layer(self, inputs: Tensors) -> LayerInputs:
        """The kernel's inputs as a :class:`LayerInputs`."""
        weights, (x_BTI, is_init_BT, *stored) = inputs[: len(WEIGHTS)], inputs[len(WEIGHTS) :]
        return LayerInputs(weights, x_BTI, Segments(is_init_BT), stored, self.cell.SPLIT_GATES * weights[1].shape[1])
