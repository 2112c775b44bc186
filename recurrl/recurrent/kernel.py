"""Runs the kernels of backends, with their hand-written derivatives, within autograd; differentiable once.

A :class:`LayerKernel` computes one layer of a cell with a hand-written derivative, in one direction; a
:class:`RecurrenceKernel` computes the linear recurrence ``s[t] = a[t] · s[t−1] + b[t]``. Under ``torch.compile`` both
passes of a :class:`Kernel` are custom operators, which the compiler does not look into. Eager calls skip the operators'
dispatch.

Shape legend: B rows, T steps, P steps of all rows (B·T), I input size, H hidden size, X size of a state, A columns of
the gate buffer (see :class:`~recurrl.recurrent.gated.AnalyticCell`): the recurrent product goes into the first of them,
the product of the input into the last. Any further dimensions are a state's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from recurrl.recurrent.cell import States, Weights
from recurrl.recurrent.cells import make_cell
from recurrl.recurrent.gated import AnalyticCell
from recurrl.recurrent.segments import Segments

Tensors = Sequence[Any]
"""Tensors, and None where there is none."""


class Kernel(ABC):
    """The forward and backward pass of a computation on one backend.

    Attributes:
        DIFFERENTIATED: number of leading inputs that always get a gradient; the others get one if it is needed.
        options: strings that make the same kernel as arguments of its class: a custom operator rebuilds it from them.
        results: number of leading outputs that the caller gets. The backward pass may read any output.
    """

    DIFFERENTIATED: ClassVar[int]
    options: tuple[str, ...] = ()
    results: int

    @abstractmethod
    def outputs(self, inputs: Tensors, keep: bool) -> list[Tensor]:
        """Allocates the outputs. Those that only a backward pass reads may be empty unless ``keep`` is true."""

    @abstractmethod
    def forward(self, inputs: Tensors, outputs: Tensors) -> None:
        """Writes the outputs, except where they are empty."""

    @abstractmethod
    def backward(self, inputs: Tensors, kept: Tensors, incoming: Tensors, grads: Tensors) -> None:
        """Writes the gradients of the inputs, except where they are empty.

        Args:
            inputs: the inputs of the forward pass.
            kept: the outputs.
            incoming: gradients of the results; None for zero.
            grads: memory for the gradients.
        """

    def run(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        """Runs the forward pass and returns the results, which autograd can differentiate once."""
        return _Differentiable.apply(self, torch.is_grad_enabled(), *inputs)  # type: ignore[no-untyped-call]


@cache
def _made(module: str, name: str, *options: str) -> Kernel:
    return cast(Kernel, getattr(import_module(module), name)(*options))


def _traceable(schema: str, run: Callable[..., list[Tensor]], shapes: Callable[..., list[Tensor]]) -> Any:
    """``run(kernel, ...)``; under ``torch.compile`` an operator, which rebuilds the kernel."""
    name, _, arguments = schema.partition("(")
    operator = torch.library.custom_op(
        f"recurrl::{name}",
        lambda names, *others: run(_made(*names), *others),
        mutates_args=(),
        schema=f"(str[] names, {arguments} -> Tensor[]",
    )
    operator.register_fake(lambda names, *others: shapes(_made(*names), *others))

    def call(kernel: Kernel, *others: Any) -> list[Tensor]:
        if not torch.compiler.is_compiling():
            return run(kernel, *others)
        return operator([type(kernel).__module__, type(kernel).__name__, *kernel.options], *others)

    return call


def _run_forward(kernel: Kernel, keep: bool, inputs: Tensors) -> list[Tensor]:
    outputs = kernel.outputs(inputs, keep)
    kernel.forward(inputs, outputs)
    return outputs


def _run_backward(kernel: Kernel, inputs: Tensors, kept: Tensors, incoming: Tensors, wanted: Any) -> list[Tensor]:
    grads = _gradients(kernel, inputs, kept, incoming, wanted)
    kernel.backward(inputs, kept, incoming, grads)
    return grads


def _gradients(kernel: Kernel, inputs: Tensors, kept: Tensors, incoming: Tensors, wanted: Any) -> list[Tensor]:
    return [kept[0].new_empty(each.shape if wants else 0) for each, wants in zip(inputs, wanted, strict=True)]


_forward = _traceable(
    "forward(bool keep, Tensor?[] inputs)", _run_forward, lambda kernel, keep, inputs: kernel.outputs(inputs, keep)
)
_backward = _traceable(
    "backward(Tensor?[] inputs, Tensor[] kept, Tensor?[] incoming, bool[] wanted)", _run_backward, _gradients
)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Kernel, keep: bool, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        outputs = _forward(kernel, keep, inputs)
        ctx.kernel = kernel
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *outputs)
        return tuple(outputs[: kernel.results])

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Any, ...]:
        # once_differentiable would silently omit the computation from a second derivative.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "The kernels of recurrent layers have first derivatives only, but create_graph=True needs a second "
                "one. Choose backend=reference, which supports any order."
            )
        kernel: Kernel = ctx.kernel
        needed = ctx.needs_input_grad[2:]
        saved = ctx.saved_tensors
        inputs, kept = saved[: len(needed)], saved[len(needed) :]
        always = [each is not None for each in inputs[: kernel.DIFFERENTIATED]]
        wanted = [*always, *needed[kernel.DIFFERENTIATED :]]
        device = inputs[0].device.type
        # Entering autocast takes as long as several operations.
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            grads = _backward(kernel, inputs, kept, incoming, wanted)
        return None, None, *[grad if wants else None for grad, wants in zip(grads, wanted, strict=True)]


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
        self.precision, self.options, self.results = precision, (self.cell.name, precision), len(self.cell.STATES)

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


def contiguous_steps(values: Tensor, like: Tensor) -> Tensor:
    """``[B, T, ...]`` in the dtype of ``like`` and contiguous within a step; rows and steps may have any strides."""
    values = values.to(like)
    return values if values[:1, :1].is_contiguous() else values.contiguous()  # there may be no rows


REAL, COMPLEX = "real", "complex"


class RecurrenceKernel(Kernel):
    """The forward and backward pass of the recurrence on one backend.

    The inputs are a, b, the starts and the stored states, ``[B, T, ...]`` each; the output is the states after each
    step.

    Args:
        numbers: ``real`` or ``complex``; a complex state's first dimension, of size 2, has real and imaginary parts.
    """

    DIFFERENTIATED, results = 2, 1

    def __init__(self, numbers: str) -> None:
        self.options, self.planes = (numbers,), 2 if numbers == COMPLEX else 1

    @classmethod
    def recurrence(cls, a: Tensor, b: Tensor, starts_BT: Tensor, stored: Tensor, pair: int | None) -> Tensor:
        """Computes :func:`~recurrl.recurrent.linear_recurrence.linear_recurrence`; differentiable once."""
        return cls(REAL if pair is None else COMPLEX).run(a.expand(b.shape), b, starts_BT, stored)[0]

    def outputs(self, inputs: Tensors, keep: bool) -> list[Tensor]:
        """Allocates the states."""
        return [inputs[1].new_empty(inputs[1].shape)]

    def forward(self, inputs: Tensors, outputs: Tensors) -> None:
        """Writes the states."""
        self._run("forward", inputs, outputs, inputs[1].contiguous())

    def backward(self, inputs: Tensors, kept: Tensors, incoming: Tensors, grads: Tensors) -> None:
        """Writes the gradients of a, b and the stored states, given the gradient of the states."""
        (grad,), (grad_a, grad_b, _, grad_stored) = incoming, grads
        grad = torch.zeros_like(kept[0]) if grad is None else grad.contiguous()
        self._run("backward", inputs, kept, grad, grad_a, grad_b, grad_stored)

    @abstractmethod
    def launch(self, direction: str, states: Tensor, strides: tuple[int, ...], *tensors: Tensor) -> None:
        """Runs the kernel.

        Args:
            direction: ``forward`` or ``backward``.
            states: the states after each step.
            strides: between rows and between steps: first of a, then of the stored states.
            tensors: a and the stored states, contiguous within a step, and the starts; then, for ``forward``, b; for
                ``backward``, the gradient of the states, and memory for the gradients of a, b and the stored states.
        """

    def _run(self, direction: str, inputs: Tensors, kept: Tensors, *memory: Tensor) -> None:
        (a, _, starts_BT, stored), (states,) = inputs, kept
        a, stored = contiguous_steps(a, states), contiguous_steps(stored, states)
        strides = (*a.stride()[:2], *stored.stride()[:2])
        self.launch(direction, states, strides, a, stored, starts_BT.bool().contiguous(), *memory)
