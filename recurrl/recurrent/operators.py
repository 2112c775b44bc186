"""One layer of a cell with a hand-written derivative, in one direction, differentiable once.

torch computes the matmuls over all steps (input projection, gradients of inputs and weights), a backend's loop the
steps. For ``torch.compile``, which then takes the layer whole, both passes are also custom operators; eager calls skip
their dispatch.

Shape legend: B rows, T steps, P steps of all rows (B·T), I input size, H hidden size, O output size (H, or that of the
projection), G gate rows, A columns that memory is kept for (see :class:`~recurrl.recurrent.gated.HandWritten`): the
first G take the recurrent product, the last G the input's. With a projection, H more hold what it projects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from recurrl.recurrent.cell import States, Weights
from recurrl.recurrent.cells import make_cell
from recurrl.recurrent.gated import WEIGHTS, HandWritten
from recurrl.recurrent.segments import Segments

Parameters = Sequence[Tensor | None]
"""Of :data:`WEIGHTS`."""


class Layer(NamedTuple):
    """What both passes of a layer read."""

    backend: str
    """Whose loop runs."""
    cell: Any
    """:class:`HandWritten`."""
    weights: Sequence[Any]
    """:data:`Parameters`."""
    segments: Segments
    stored: list[Tensor]
    """The stored states ``[B, T, ...]``."""

    @property
    def split(self) -> int:
        """The columns of memory that the input's product skips: those of the split gates' recurrent product."""
        return self.cell.SPLIT_GATES * (len(self.weights[0]) // self.cell.GATES)

    @property
    def inputs(self) -> slice:
        """The columns of the input's product."""
        return slice(self.split, self.split + len(self.weights[0]))


class Loop(Protocol):
    """A backend's loop over the steps, in an order of its own."""

    def order(self, segments: Segments) -> Tensor | None:
        """The flat index of the row step at each place of its order; None if that is the rows' own."""
        ...

    def forward(self, layer: Layer, ends: list[Tensor], states: list[Tensor], gates_PA: Tensor) -> None:
        """Writes each state at the segments' last steps (zero elsewhere), each after every step, and the gates, whose
        last G of the A columns hold the input projections.
        """
        ...

    def backward(
        self,
        layer: Layer,
        states: list[Tensor],
        gates_PA: Tensor,
        grads: list[Tensor | None],
        grad_stored: list[Tensor],
        overwrite: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """From the gradients of the output and of each state at the segments' last steps.

        Returns the gradients of the gates ``[P, A]``, the first state before each step, and the projection's
        gradient; writes those of the stored states unless the list is empty. May use ``gates`` for the result with
        ``overwrite``.
        """
        ...


def forward(layer: Layer, x_BTI: Tensor, keep: bool) -> list[Tensor]:
    """Each state at the segments' last steps, each after every step, and the gates for the backward pass, which are
    empty unless ``keep``.
    """
    loop, count, (w_ih, _, b_ih, *_) = _loop(layer.backend), len(layer.stored), layer.weights
    outputs = _outputs(layer, x_BTI, True)
    ends, states, gates_PA = outputs[:count], outputs[count:-1], outputs[-1]
    x_PI, projected_PG = _in_order(x_BTI, loop.order(layer.segments)), gates_PA[:, layer.inputs]
    if b_ih is None:
        torch.mm(x_PI, w_ih.t(), out=projected_PG)
    else:
        torch.addmm(b_ih, x_PI, w_ih.t(), out=projected_PG)
    loop.forward(layer, ends, states, gates_PA)
    return outputs if keep else [*outputs[:-1], gates_PA[:0].clone()]


def backward(
    layer: Layer,
    x_BTI: Tensor,
    wants_x: bool,
    wants_stored: bool,
    incoming: list[Tensor | None],
    states: list[Tensor],
    gates_PA: Tensor,
    overwrite: bool = False,
) -> list[Tensor]:
    """Gradients of x, the weights and the stored states; empty where there are none or none is wanted.

    Args as for :func:`forward`, and ``incoming``: the gradients of the output and of each state at the segments' ends.
    """
    loop, stored, (w_ih, _, b_ih, *_) = _loop(layer.backend), layer.stored, layer.weights
    rows, order = len(w_ih), loop.order(layer.segments)
    grads = _gradients(layer, x_BTI, wants_x, wants_stored)
    grad_stored = grads[-len(stored) :] if wants_stored else []
    grad_PA, entered_PO, grad_w_hr = loop.backward(layer, states, gates_PA, incoming, grad_stored, overwrite)
    x_PI, grad_x_PG, split = _in_order(x_BTI, order), grad_PA[:, layer.inputs], layer.split
    if wants_x and order is None:
        torch.mm(grad_x_PG, w_ih, out=grads[0].flatten(0, 1))
    elif wants_x and order is not None:
        grads[0].flatten(0, 1).index_copy_(0, order, grad_x_PG @ w_ih)
    torch.mm(grad_x_PG.t(), x_PI, out=grads[1])
    grad_w_hh, grad_bias_A = grad_PA[:, :rows].t() @ entered_PO, grad_PA.sum(0)
    torch.cat((grad_w_hh[split:], grad_w_hh[:split]), out=grads[2])
    if b_ih is not None:
        grads[3].copy_(grad_bias_A[layer.inputs])
        torch.cat((grad_bias_A[split:rows], grad_bias_A[:split]), out=grads[4])
    if grad_w_hr is not None:
        grads[5].copy_(grad_w_hr)
    return grads


@cache
def _loop(backend: str) -> Loop:
    return cast(Loop, import_module(f"recurrl.recurrent.backends.{backend}.loop"))


def _in_order(x_BTI: Tensor, order: Tensor | None) -> Tensor:
    return x_BTI.flatten(0, 1) if order is None else x_BTI.flatten(0, 1).index_select(0, order)


def _outputs(layer: Layer, x_BTI: Tensor, keep: bool) -> list[Tensor]:
    rows, steps, _ = x_BTI.shape
    _, cell, (w_ih, *_, w_hr), _, stored = layer
    columns = (cell.GATES + cell.SPLIT_GATES + (w_hr is not None)) * (len(w_ih) // cell.GATES)
    states = [x_BTI.new_empty(rows, steps, state.shape[2]) for state in 2 * stored]
    return [*states, x_BTI.new_empty(rows * steps if keep else 0, columns)]


def _gradients(layer: Layer, x_BTI: Tensor, wants_x: bool, wants_stored: bool, *others: Any) -> list[Tensor]:
    return [
        torch.empty_like(x_BTI, memory_format=torch.contiguous_format) if wants_x else x_BTI.new_empty(0),
        *(x_BTI.new_empty(0 if weight is None else weight.shape) for weight in layer.weights),
        *(x_BTI.new_empty(state.shape if wants_stored else 0) for state in layer.stored),
    ]


_operators = torch.library.Library("recurrl", "FRAGMENT")
_LAYER = "str backend, str cell, Tensor?[] weights, Tensor starts, Tensor[] stored, Tensor x"
_operators.define(f"layer_forward({_LAYER}, bool keep) -> Tensor[]")
_operators.define(
    f"layer_backward({_LAYER}, bool wants_x, bool wants_stored, Tensor?[] grads, Tensor[] states, Tensor gates) "
    "-> Tensor[]"
)


@cache
def _named(cell: str) -> Any:
    return make_cell(cell, 1)  # its maths reads the sizes from its arguments


def _operator(run: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """``run(layer, ...)`` with the arguments of an operator."""

    def operator(backend: str, cell: str, weights: Any, starts_BT: Tensor, stored: Any, *others: Any) -> list[Tensor]:
        return run(Layer(backend, _named(cell), weights, Segments(starts_BT), stored), *others)

    return operator


for _name, _run, _shapes in (("layer_forward", forward, _outputs), ("layer_backward", backward, _gradients)):
    _operators.impl(_name, _operator(_run), "CompositeExplicitAutograd")
    torch.library.register_fake(f"recurrl::{_name}", _operator(_shapes))


def layer(
    backend: str,
    cell: HandWritten,
    x_BTI: Tensor,
    starts_BT: Tensor,
    stored: States,
    weights: Weights,
    recompute: bool = False,
) -> tuple[Tensor, States]:
    """The output ``[B, T, O]`` of every step, and each state at the segments' last steps, zero elsewhere.

    Args:
        backend: whose loop runs.
        cell: under ``torch.compile``, one of the package.
        x_BTI: the input.
        starts_BT: true where the stored state enters.
        stored: the stored states, read only there.
        weights: by name.
        recompute: run the forward pass again for the backward pass, instead of keeping its gates and states.
    """
    parameters = [weights.get(name) for name in WEIGHTS]
    if torch.is_grad_enabled():
        given = (backend, cell, recompute, x_BTI, starts_BT, *parameters, *stored)
        output, *ends = _Differentiable.apply(*given)  # type: ignore[no-untyped-call]
        return output, tuple(ends)
    found = _forward(backend, cell, parameters, starts_BT, list(stored), x_BTI, False)
    return found[len(stored)], tuple(found[: len(stored)])


def _forward(
    backend: str, cell: Any, weights: Any, starts_BT: Tensor, stored: list[Tensor], *others: Any
) -> list[Tensor]:
    if not torch.compiler.is_compiling():
        return forward(Layer(backend, cell, weights, Segments(starts_BT), stored), *others)
    operator = torch.ops.recurrl.layer_forward.default
    found: list[Tensor] = operator(backend, cell.name, weights, starts_BT, stored, *others)
    return found


def refuse_second_derivative(backend: str) -> None:
    """Refuses a backward pass that is itself differentiated.

    Raises:
        RuntimeError: gradients are enabled.
    """
    # once_differentiable would silently omit the layer from a second derivative.
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"backend={backend} supports first derivatives only, but create_graph=True asks for a second one. "
            "Choose backend=reference, which supports any order."
        )


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, backend: str, cell: Any, recompute: bool, x_BTI: Tensor, starts_BT: Tensor, *given: Tensor
    ) -> tuple[Tensor, ...]:
        weights, stored = given[: len(WEIGHTS)], list(given[len(WEIGHTS) :])
        found = _forward(backend, cell, weights, starts_BT, stored, x_BTI, not recompute)
        ctx.backend, ctx.cell, ctx.is_kept = backend, cell, not recompute
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x_BTI, starts_BT, *given, *([] if recompute else found[len(stored) :]))
        return found[len(stored)], *found[: len(stored)]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        refuse_second_derivative(ctx.backend)
        count = len(grads) - 1
        x_BTI, starts_BT, *rest = ctx.saved_tensors
        weights, rest = rest[: len(WEIGHTS)], rest[len(WEIGHTS) :]
        stored, kept = rest[:count], rest[count:]
        if not ctx.is_kept:
            kept = _forward(ctx.backend, ctx.cell, weights, starts_BT, stored, x_BTI, True)[count:]
        wants_x, wants_stored = ctx.needs_input_grad[3], any(ctx.needs_input_grad[-count:])
        others = (x_BTI, wants_x, wants_stored, list(grads), kept[:-1], kept[-1])
        if torch.compiler.is_compiling():
            operator = torch.ops.recurrl.layer_backward.default
            found = operator(ctx.backend, ctx.cell.name, weights, starts_BT, stored, *others)
        else:
            ctx.is_kept = False  # for a second call, with retain_graph
            layer = Layer(ctx.backend, ctx.cell, weights, Segments(starts_BT), stored)
            found = backward(layer, *others, overwrite=True)
        wanted = [wants_x, *(weight is not None for weight in weights), *[wants_stored] * count]
        grad_x, *grad_others = [grad if wants else None for grad, wants in zip(found, wanted, strict=True)]
        return None, None, None, grad_x, None, *grad_others
