"""The linear recurrence ``s[t] = a[t] · s[t−1] + b[t]`` by a backend's kernels, differentiable once.

For ``torch.compile``, which then takes them whole, both passes are also custom operators; eager calls skip their
dispatch.

Shape legend: B rows, T steps; any further dimensions are a state's.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from recurrl.recurrent.operators import reject_second_derivative


class RecurrenceCall(NamedTuple):
    """What both passes read.

    Attributes:
        a: the coefficients ``[B, T, ...]``, contiguous within a step.
        starts_BT: where a stored state enters.
        stored: the stored states ``[B, T, ...]``, contiguous within a step.
        states: those after each step, which the forward pass writes.
        pairs: the numbers are complex: the first dimension of a state, of size 2, has real and imaginary parts.
    """

    a: Tensor
    starts_BT: Tensor
    stored: Tensor
    states: Tensor
    pairs: bool

    @property
    def strides(self) -> tuple[int, ...]:
        """Between rows and between steps, of a and of the stored states."""
        return *self.a.stride()[:2], *self.stored.stride()[:2]


class Kernels(Protocol):
    """Both passes by one backend, in its module ``recurrence``."""

    def forward(self, call: RecurrenceCall, b: Tensor) -> None:
        """Writes the states."""
        ...

    def backward(self, call: RecurrenceCall, grad: Tensor, grads: list[Tensor]) -> None:
        """Writes the gradients of a, b and the stored states, the last unless they are empty, from the states'."""
        ...


def recurrence(backend: str, a: Tensor, b: Tensor, starts_BT: Tensor, stored: Tensor, pairs: bool) -> Tensor:
    """As :func:`~recurrl.recurrent.linear_recurrence.linear_recurrence`, of an a that has all rows and steps."""
    return _Differentiable.apply(backend, a, b, starts_BT, stored, pairs)  # type: ignore[no-untyped-call]


def forward(backend: str, a: Tensor, b: Tensor, starts_BT: Tensor, stored: Tensor, pairs: bool) -> Tensor:
    """The states after each step."""
    states = _states(backend, a, b, starts_BT, stored, pairs)
    _kernels(backend).forward(_call(backend, a, starts_BT, stored, states, pairs), b.contiguous())
    return states


def backward(
    backend: str, a: Tensor, starts_BT: Tensor, stored: Tensor, states: Tensor, pairs: bool, grad: Tensor, wanted: bool
) -> list[Tensor]:
    """Gradients of a, b and the stored states; the last is empty unless it is wanted."""
    grads = _gradients(backend, a, starts_BT, stored, states, pairs, grad, wanted)
    _kernels(backend).backward(_call(backend, a, starts_BT, stored, states, pairs), grad.contiguous(), grads)
    return grads


@cache
def _kernels(backend: str) -> Kernels:
    return cast(Kernels, import_module(f"recurrl.recurrent.backends.{backend}.recurrence"))


def _call(backend: str, a: Tensor, starts_BT: Tensor, stored: Tensor, states: Tensor, pairs: bool) -> RecurrenceCall:
    if stored.shape != states.shape or a.dtype != states.dtype:
        raise ValueError(
            f"backend={backend} needs stored states {list(states.shape)} and coefficients of {states.dtype}; there are "
            f"{list(stored.shape)} and {a.dtype}."
        )
    a, stored = (each if each[0, 0].is_contiguous() else each.contiguous() for each in (a, stored.to(states)))
    return RecurrenceCall(a, starts_BT.bool().contiguous(), stored, states, pairs)


def _states(backend: str, a: Tensor, b: Tensor, starts_BT: Tensor, stored: Tensor, pairs: bool) -> Tensor:
    return b.new_empty(b.shape)


def _gradients(
    backend: str, a: Tensor, starts_BT: Tensor, stored: Tensor, states: Tensor, pairs: bool, grad: Tensor, wanted: bool
) -> list[Tensor]:
    return [grad.new_empty(shape) for shape in (a.shape, states.shape, stored.shape if wanted else (0,))]


_operators = torch.library.Library("recurrl", "FRAGMENT")
_operators.define(
    "recurrence_forward(str backend, Tensor a, Tensor b, Tensor starts, Tensor stored, bool pairs) -> Tensor"
)
_operators.define(
    "recurrence_backward(str backend, Tensor a, Tensor starts, Tensor stored, Tensor states, bool pairs, Tensor grad, "
    "bool wanted) -> Tensor[]"
)
_operators.impl("recurrence_forward", forward, "CompositeExplicitAutograd")
_operators.impl("recurrence_backward", backward, "CompositeExplicitAutograd")
torch.library.register_fake("recurrl::recurrence_forward", _states)
torch.library.register_fake("recurrl::recurrence_backward", _gradients)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, backend: str, a: Tensor, b: Tensor, starts_BT: Tensor, stored: Tensor, pairs: bool) -> Tensor:
        run: Any = torch.ops.recurrl.recurrence_forward.default if torch.compiler.is_compiling() else forward
        states: Tensor = run(backend, a, b, starts_BT, stored, pairs)
        ctx.save_for_backward(a, starts_BT, stored, states)
        ctx.backend, ctx.pairs = backend, pairs
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        reject_second_derivative(ctx.backend)
        run: Any = torch.ops.recurrl.recurrence_backward.default if torch.compiler.is_compiling() else backward
        wanted = ctx.needs_input_grad[4]
        grad_a, grad_b, grad_stored = run(ctx.backend, *ctx.saved_tensors, ctx.pairs, grad, wanted)
        return None, grad_a, grad_b, None, grad_stored if wanted else None, None
