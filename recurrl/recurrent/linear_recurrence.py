"""The recurrence ``s[t] = a[t] · s[t−1] + b[t]`` without a loop over time: with resets, for real and complex numbers.

A complex number is a pair of reals: its real and imaginary parts are two planes, along a dimension ``pair`` of size 2.

Shape legend: B rows, T steps; any further dimensions are a state's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def linear_recurrence(a: Tensor, b: Tensor, starts_BT: Tensor, stored: Tensor, pair: int | None = None) -> Tensor:
    """``s[t] = a[t] · s[t−1] + b[t]`` for all t, ``[B, T, ...]``, with the stored state at t instead of ``s[t−1]``
    where ``starts`` is true (at t = 0 among others).

    By doubling (Hillis and Steele 1986): ⌈log₂ T⌉ passes over all steps, each composing pairs twice as far apart as
    the one before. Differentiable to any order: the gradient is the same recurrence backwards in time.

    Args:
        a: anything that broadcasts to ``b``.
        b: ``[B, T, ...]``.
        starts_BT: where a stored state enters.
        stored: like ``b``; read at starts only.
        pair: the dimension of real and imaginary parts, counted from the end; None for real numbers.
    """
    start = starts_BT.view(*starts_BT.shape, *[1] * (b.ndim - 2))
    # Selected before it is multiplied: a stored state that is not read may be NaN.
    b = b + complex_mul(a, torch.where(start, stored, 0.0), pair)
    return scan_from_zero(torch.where(start, 0.0, a), b, pair)


def scan_from_zero(a: Tensor, b: Tensor, pair: int | None = None) -> Tensor:
    """:func:`linear_recurrence` with ``s[−1] = 0`` and no other stored state."""
    return _LinearRecurrence.apply(a, b, pair)  # type: ignore[no-untyped-call]


def complex_mul(a: Tensor, b: Tensor, pair: int | None) -> Tensor:
    """``a · b`` of complex numbers, with real and imaginary parts along dimension ``pair``; of real ones for None."""
    if pair is None:
        return a * b
    (a_re, a_im), (b_re, b_im) = a.unbind(pair), b.unbind(pair)
    return torch.stack((a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re), pair)


def _conjugate(a: Tensor, pair: int | None) -> Tensor:
    if pair is None:
        return a
    real, imaginary = a.unbind(pair)
    return torch.stack((real, -imaginary), pair)


class _LinearRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, pair: int | None) -> Tensor:
        s = _by_doubling(a, b, pair)
        ctx.save_for_backward(a, s)
        ctx.pair = pair
        return s

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (a, s), pair = ctx.saved_tensors, ctx.pair
        a_after = _conjugate(_shifted(a, -1), pair)
        grad_b = scan_from_zero(a_after.flip(1), grad.flip(1), pair).flip(1)
        grad_a = complex_mul(grad_b, _conjugate(_shifted(s, 1), pair), pair)
        return grad_a.sum_to_size(a.shape), grad_b, None


def _shifted(values: Tensor, steps: int) -> Tensor:
    """Moves values ``[B, T, ...]`` later by ``steps``, or earlier if negative, and fills the gap with zeros."""
    return functional.pad(values, (0, 0) * (values.ndim - 2) + (steps, -steps))  # a negative number crops


def _by_doubling(a: Tensor, b: Tensor, pair: int | None) -> Tensor:
    distance = 1
    while distance < b.shape[1]:
        b = b + complex_mul(a, _shifted(b, distance), pair)
        a = complex_mul(a, _shifted(a, distance), pair)
        distance *= 2
    return b
