"""The recurrence ``h[t] = a[t] · h[t−1] + b[t]`` without a loop over time, with resets.

Shape legend: B rows, T steps, H features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def linear_recurrence(a_BTH: Tensor, b_BTH: Tensor, starts_BT: Tensor, stored_BTH: Tensor) -> Tensor:
    """``h[t] = a[t] · h[t−1] + b[t]`` for all t, ``[B, T, H]``, with the stored state at t instead of ``h[t−1]`` where
    ``starts`` is true (at t = 0 among others).

    By doubling (Hillis and Steele 1986): ⌈log₂ T⌉ passes over all steps, each composing pairs twice as far apart as
    the one before. Differentiable to any order: the gradient is the same recurrence backwards in time.
    """
    start_BT1 = starts_BT.unsqueeze(-1)
    # Selected before it is multiplied: a stored state that is not read may be NaN.
    b_BTH = b_BTH + a_BTH * torch.where(start_BT1, stored_BTH, 0.0)
    return from_zero(torch.where(start_BT1, 0.0, a_BTH), b_BTH)


def from_zero(a_BTH: Tensor, b_BTH: Tensor) -> Tensor:
    """:func:`linear_recurrence` with ``h[−1] = 0`` and no other stored state."""
    return _LinearRecurrence.apply(a_BTH, b_BTH)  # type: ignore[no-untyped-call]


class _LinearRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        h = _by_doubling(a, b)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, h = ctx.saved_tensors
        a_after = functional.pad(a[:, 1:], (0, 0, 0, 1))
        grad_b = from_zero(a_after.flip(1), grad.flip(1)).flip(1)
        return grad_b * functional.pad(h[:, :-1], (0, 0, 1, 0)), grad_b


def _by_doubling(a: Tensor, b: Tensor) -> Tensor:
    distance = 1
    while distance < b.shape[1]:
        earlier_a = functional.pad(a[:, :-distance], (0, 0, distance, 0))
        earlier_b = functional.pad(b[:, :-distance], (0, 0, distance, 0))
        b = torch.addcmul(b, a, earlier_b)
        a = a * earlier_a
        distance *= 2
    return b
