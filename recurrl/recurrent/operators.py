"""One layer of a cell with a hand-written derivative, in one direction, differentiable once.

A backend's loop computes both passes. For ``torch.compile``, which then takes the layer whole, they are also custom
operators; eager calls skip their dispatch.

Shape legend: B rows, T steps, P steps of all rows (B·T), I input size, H hidden size, G gate rows, A columns that
memory is kept for (see :class:`~recurrl.recurrent.gated.AnalyticCell`): the first G take the recurrent product, the
last G the input's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from recurrl.recurrent.cell import States, Weights
from recurrl.recurrent.cells import make_cell
from recurrl.recurrent.gated import AnalyticCell
from recurrl.recurrent.segments import Segments

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
"""Names of the parameters, in the order of :attr:`LayerCall.weights`."""


class LayerCall(NamedTuple):
    """What both passes of a layer read.

    Attributes:
        backend: whose loop runs.
        cell: of the layer.
        precision: concrete matmul precision, for a backend that controls it.
        weights: a tensor or None for each of :data:`WEIGHTS`.
        segments: of the rows.
        stored: the stored states ``[B, T, ...]``.
        x_BTI: the input.
    """

    backend: str
    cell: AnalyticCell
    precision: str
    weights: Sequence[Any]
    segments: Segments
    stored: Sequence[Tensor]
    x_BTI: Tensor

    @property
    def split(self) -> int:
        """The columns of memory that the input's product skips: those of the split gates' recurrent product."""
        return self.cell.SPLIT_GATES * (len(self.weights[0]) // self.cell.GATES)

    @property
    def inputs(self) -> slice:
        """The columns of the input's product."""
        return slice(self.split, self.split + len(self.weights[0]))


class Loop(Protocol):
    """Both passes of a layer by one backend. ``kept`` holds each state after every step, and then the gates."""

    def forward(self, call: LayerCall, ends: list[Tensor], kept: list[Tensor]) -> None:
        """Writes each state at the segments' last steps (zero elsewhere), and ``kept``; no gates if they are empty."""
        ...

    def backward(self, call: LayerCall, kept: list[Tensor], incoming: list[Tensor | None], grads: list[Tensor]) -> None:
        """Writes ``grads``, those of x, the weights and the stored states, except where they are empty, from
        ``incoming``, those of the output and of each state at the segments' last steps.
        """
        ...


def forward(call: LayerCall, keep: bool) -> list[Tensor]:
    """Each state at the segments' last steps, each after every step, and the gates for the backward pass, which are
    empty unless ``keep``.
    """
    outputs, count = _outputs(call, keep), len(call.stored)
    _loop(call.backend).forward(call, outputs[:count], outputs[count:])
    return outputs


def backward(
    call: LayerCall, wants_x: bool, wants_stored: bool, incoming: list[Tensor | None], kept: list[Tensor]
) -> list[Tensor]:
    """Gradients of x, the weights and the stored states; empty where there are none or none is wanted.

    Args:
        call: the layer and its input.
        wants_x: compute the gradient of the input.
        wants_stored: compute the gradients of the stored states.
        incoming: gradients of the output and of each state at the segments' ends; None for zero.
        kept: each state after every step, and the gates.
    """
    grads = _gradients(call, wants_x, wants_stored)
    _loop(call.backend).backward(call, kept, incoming, grads)
    return grads


def project(call: LayerCall, x_PI: Tensor, gates_PA: Tensor) -> Tensor:
    """The projections of the input with all biases, as the sums to which the recurrent product is added.

    They are in ``gates_PA``, or in new memory if that is empty.
    """
    w_ih, w_hh, b_ih, b_hh = call.weights
    sums_PA = gates_PA if len(gates_PA) else x_PI.new_empty(len(x_PI), gates_PA.shape[1])
    bias_A = x_PI.new_zeros(gates_PA.shape[1])
    if b_ih is not None:
        bias_A[call.inputs] += b_ih
        bias_A[: len(w_hh)] += b_hh.roll(call.split, 0)
    sums_PA[:, : call.split] = bias_A[: call.split]
    torch.addmm(bias_A[call.inputs], x_PI, w_ih.t(), out=sums_PA[:, call.inputs])
    return sums_PA


def write_gradients(call: LayerCall, x_PI: Tensor, before_PX: Tensor, grad_PA: Tensor, grads: list[Tensor]) -> None:
    """Writes the gradients of the weights from those of the projections, the input and the state before each step."""
    _, grad_w_ih, grad_w_hh, grad_b_ih, grad_b_hh, *_ = grads
    rows = len(grad_w_hh)
    torch.mm(grad_PA[:, call.inputs].t(), x_PI, out=grad_w_ih)
    grad_w_hh.copy_((grad_PA[:, :rows].t() @ before_PX).roll(-call.split, 0))
    if len(grad_b_ih):
        grad_A = grad_PA.sum(0)
        grad_b_ih.copy_(grad_A[call.inputs])
        grad_b_hh.copy_(grad_A[:rows].roll(-call.split, 0))


@cache
def _loop(backend: str) -> Loop:
    return cast(Loop, import_module(f"recurrl.recurrent.backends.{backend}.loop"))


def _outputs(call: LayerCall, keep: bool) -> list[Tensor]:
    rows, steps, _ = call.x_BTI.shape
    columns = (call.cell.GATES + call.cell.SPLIT_GATES) * (len(call.weights[0]) // call.cell.GATES)
    states = [call.x_BTI.new_empty(state.shape) for state in (*call.stored, *call.stored)]
    return [*states, call.x_BTI.new_empty(rows * steps if keep else 0, columns)]


def _gradients(call: LayerCall, wants_x: bool, wants_stored: bool, *others: Any) -> list[Tensor]:
    return [
        call.x_BTI.new_empty(call.x_BTI.shape if wants_x else 0),
        *[call.x_BTI.new_empty(0 if weight is None else weight.shape) for weight in call.weights],
        *[call.x_BTI.new_empty(state.shape if wants_stored else 0) for state in call.stored],
    ]


_operators = torch.library.Library("recurrl", "FRAGMENT")
_CALL = "str backend, str cell, str precision, Tensor?[] weights, Tensor is_init, Tensor[] stored, Tensor x"
_operators.define(f"layer_forward({_CALL}, bool keep) -> Tensor[]")
_operators.define(
    f"layer_backward({_CALL}, bool wants_x, bool wants_stored, Tensor?[] grads, Tensor[] kept) -> Tensor[]"
)


@cache
def _named(cell: str) -> AnalyticCell:
    # Its maths reads the sizes from its arguments.
    return cast(AnalyticCell, make_cell(cell, 1))


def _operator(run: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """``run(call, ...)`` with the arguments of an operator."""

    def operator(
        backend: str, cell: str, precision: str, weights: Any, is_init: Tensor, stored: Any, x: Tensor, *others: Any
    ) -> list[Tensor]:
        return run(LayerCall(backend, _named(cell), precision, weights, Segments(is_init), stored, x), *others)

    return operator


for _name, _run, _shapes in (("layer_forward", forward, _outputs), ("layer_backward", backward, _gradients)):
    _operators.impl(_name, _operator(_run), "CompositeExplicitAutograd")
    torch.library.register_fake(f"recurrl::{_name}", _operator(_shapes))


def _traceable(run: Callable[..., list[Tensor]], operator: Any, call: LayerCall, *others: Any) -> list[Tensor]:
    """``run(call, ...)``, under ``torch.compile`` as one operator."""
    if not torch.compiler.is_compiling():
        return run(call, *others)
    kind = (call.backend, call.cell.name, call.precision)
    return cast(list[Tensor], operator(*kind, call.weights, call.segments.is_init_BT, call.stored, call.x_BTI, *others))


def run_layer(
    backend: str,
    cell: AnalyticCell,
    x_BTI: Tensor,
    segments: Segments,
    stored: States,
    weights: Weights,
    precision: str = "",
    keep: bool = True,
) -> tuple[Tensor, States]:
    """The output ``[B, T, H]`` of every step, and each state at the segments' last steps, zero elsewhere.

    Args:
        backend: whose loop runs.
        cell: under ``torch.compile``, one of the package.
        x_BTI: the input.
        segments: of the rows.
        stored: the stored states, read only where segments start.
        weights: by name.
        precision: concrete matmul precision, for a backend that controls it.
        keep: keep gates and states for the backward pass; otherwise that runs the forward pass again.
    """
    kind, tensors = (backend, cell, precision), (*map(weights.get, WEIGHTS), *stored)
    output, *ends = _Differentiable.apply(  # type: ignore[no-untyped-call]
        kind, keep and torch.is_grad_enabled(), x_BTI, segments.is_init_BT, *tensors
    )
    return output, tuple(ends)


def reject_second_derivative(backend: str) -> None:
    """Called in a backward pass.

    Raises:
        RuntimeError: autograd would differentiate it.
    """
    # once_differentiable would silently omit the layer from a second derivative.
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"backend={backend} supports first derivatives only, but create_graph=True needs a second one. Choose "
            "backend=reference, which supports any order."
        )


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kind: tuple[str, AnalyticCell, str],
        keep: bool,
        x_BTI: Tensor,
        is_init_BT: Tensor,
        *weights_and_stored: Tensor,
    ) -> tuple[Tensor, ...]:
        weights, stored = weights_and_stored[: len(WEIGHTS)], list(weights_and_stored[len(WEIGHTS) :])
        call = LayerCall(*kind, weights, Segments(is_init_BT), stored, x_BTI)
        outputs = _traceable(forward, torch.ops.recurrl.layer_forward.default, call, keep)
        ctx.kind = kind
        kept = outputs[len(stored) :] if keep else []
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x_BTI, is_init_BT, *weights_and_stored, *kept)
        return outputs[len(stored)], *outputs[: len(stored)]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        kind: tuple[str, AnalyticCell, str] = ctx.kind
        reject_second_derivative(kind[0])
        count = len(grads) - 1
        x_BTI, is_init_BT, *saved = ctx.saved_tensors
        weights, saved = saved[: len(WEIGHTS)], saved[len(WEIGHTS) :]
        stored, kept = saved[:count], saved[count:]
        wants_x, wants_stored = ctx.needs_input_grad[2], any(ctx.needs_input_grad[-count:])
        call = LayerCall(*kind, weights, Segments(is_init_BT), stored, x_BTI)
        device = x_BTI.device.type
        # Entering autocast takes as long as several operations.
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            if not kept:
                kept = _traceable(forward, torch.ops.recurrl.layer_forward.default, call, True)[count:]
            arguments = (wants_x, wants_stored, list(grads), kept)
            computed = _traceable(backward, torch.ops.recurrl.layer_backward.default, call, *arguments)
        # An empty gradient stands for one that does not exist or is not wanted.
        wanted = (wants_x, *[weight is not None for weight in weights], *[wants_stored] * count)
        grad_x, *grad_others = [grad if wants else None for grad, wants in zip(computed, wanted, strict=True)]
        return None, None, grad_x, None, *grad_others
