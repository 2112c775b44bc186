"""One layer of a cell with a hand-written derivative, in one direction, differentiable once.

A backend's loop computes both passes. For ``torch.compile``, which then takes the layer whole, they are also custom
operators; eager calls skip their dispatch.

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
from torch.utils._python_dispatch import _get_current_dispatch_mode

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
    """Both passes of a layer by one backend."""

    def forward(self, layer: Layer, x_BTI: Tensor, ends: list[Tensor], states: list[Tensor], gates_PA: Tensor) -> None:
        """Writes each state at the segments' last steps (zero elsewhere), each after every step, and, unless it is
        empty, ``gates`` for the backward pass.
        """
        ...

    def backward(
        self,
        layer: Layer,
        x_BTI: Tensor,
        states: list[Tensor],
        gates_PA: Tensor,
        incoming: list[Tensor | None],
        grads: list[Tensor],
    ) -> None:
        """Writes ``grads``, those of x, the weights and the stored states, except where they are empty, from
        ``incoming``, those of the output and of each state at the segments' last steps.
        """
        ...


def forward(layer: Layer, x_BTI: Tensor, keep: bool) -> list[Tensor]:
    """Each state at the segments' last steps, each after every step, and the gates for the backward pass, which are
    empty unless ``keep``.
    """
    outputs, count = _outputs(layer, x_BTI, keep), len(layer.stored)
    _loop(layer.backend).forward(layer, x_BTI, outputs[:count], outputs[count:-1], outputs[-1])
    return outputs


def backward(
    layer: Layer,
    x_BTI: Tensor,
    wants_x: bool,
    wants_stored: bool,
    incoming: list[Tensor | None],
    states: list[Tensor],
    gates_PA: Tensor,
) -> list[Tensor]:
    """Gradients of x, the weights and the stored states; empty where there are none or none is wanted.

    Args as for :func:`forward`, and ``incoming``: the gradients of the output and of each state at the segments' ends.
    """
    grads = _gradients(layer, x_BTI, wants_x, wants_stored)
    _loop(layer.backend).backward(layer, x_BTI, states, gates_PA, incoming, grads)
    return grads


@cache
def _loop(backend: str) -> Loop:
    return cast(Loop, import_module(f"recurrl.recurrent.backends.{backend}.loop"))


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

WITHOUT_DISPATCH: dict[Any, Callable[..., list[Tensor]]] = {
    torch.ops.recurrl.layer_forward.default: _operator(forward),
    torch.ops.recurrl.layer_backward.default: _operator(backward),
}
"""What an operator calls, by the operator."""


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


def _is_traced(cell: Any) -> bool:
    """True where the layer must be one operation: for the compiler, or for a ``TorchDispatchMode`` to see it."""
    return torch.compiler.is_compiling() or (cell.TORCH is not None and _get_current_dispatch_mode() is not None)


def _forward(
    backend: str, cell: Any, weights: Any, starts_BT: Tensor, stored: list[Tensor], *others: Any
) -> list[Tensor]:
    if not _is_traced(cell):
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
        ctx.backend, ctx.cell, ctx.recompute = backend, cell, recompute
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
        if ctx.recompute:
            kept = _forward(ctx.backend, ctx.cell, weights, starts_BT, stored, x_BTI, True)[count:]
        wants_x, wants_stored = ctx.needs_input_grad[3], any(ctx.needs_input_grad[-count:])
        others = (x_BTI, wants_x, wants_stored, list(grads), kept[:-1], kept[-1])
        if _is_traced(ctx.cell):
            operator = torch.ops.recurrl.layer_backward.default
            found = operator(ctx.backend, ctx.cell.name, weights, starts_BT, stored, *others)
        else:
            found = backward(Layer(ctx.backend, ctx.cell, weights, Segments(starts_BT), stored), *others)
        wanted = [wants_x, *(weight is not None for weight in weights), *[wants_stored] * count]
        grad_x, *grad_others = [grad if wants else None for grad, wants in zip(found, wanted, strict=True)]
        return None, None, None, grad_x, None, *grad_others
