"""The recurrence of linear cells, forwards and backwards.

A program runs all steps of one row for BW entries of a state, which stay in registers from step to step: no thread
reads what another wrote. The stored state is read only where a start is flagged.

With ``PAIRS`` a state is complex: two planes, of real and of imaginary parts. Without it, variables whose names end in
``_im`` are not used.

Shape legend: T steps, W entries of a plane.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load(base, mask, W: tl.constexpr, PAIRS: tl.constexpr):
    re = tl.load(base, mask=mask, other=0.0)
    im = re
    if PAIRS:
        im = tl.load(base + W, mask=mask, other=0.0)
    return re, im


@triton.jit
def _store(base, re, im, mask, W: tl.constexpr, PAIRS: tl.constexpr):
    tl.store(base, re, mask=mask)
    if PAIRS:
        tl.store(base + W, im, mask=mask)


@triton.jit
def _product(a_re, a_im, b_re, b_im, PAIRS: tl.constexpr):
    re, im = a_re * b_re, b_im
    if PAIRS:
        re, im = re - a_im * b_im, a_re * b_im + a_im * b_re
    return re, im


# Specialising on T would recompile the kernels for each row length.
@triton.jit(do_not_specialize=["T"])
def forward(
    a,
    starts,
    stored,
    states,
    b,
    T,
    a_row,
    a_step,
    stored_row,
    stored_step,
    W: tl.constexpr,
    BW: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Writes the states after each step."""
    row, entry = tl.program_id(0).to(tl.int64), tl.program_id(1) * BW + tl.arange(0, BW)
    mask, size = entry < W, W * (2 if PAIRS else 1)
    s_re = tl.zeros([BW], dtype=b.dtype.element_ty)
    s_im = s_re
    for t in range(T):
        step = row * T + t
        start = tl.load(starts + step) != 0
        is_read = entry < tl.where(start, W, 0)
        new_re, new_im = _load(stored + row * stored_row + t * stored_step + entry, is_read, W, PAIRS)
        s_re, s_im = tl.where(start, new_re, s_re), tl.where(start, new_im, s_im)
        a_re, a_im = _load(a + row * a_row + t * a_step + entry, mask, W, PAIRS)
        b_re, b_im = _load(b + step * size + entry, mask, W, PAIRS)
        s_re, s_im = _product(a_re, a_im, s_re, s_im, PAIRS)
        s_re, s_im = s_re + b_re, s_im + b_im
        _store(states + step * size + entry, s_re, s_im, mask, W, PAIRS)


@triton.jit(do_not_specialize=["T"])
def backward(
    a,
    starts,
    stored,
    states,
    grad,
    grad_a,
    grad_b,
    grad_stored,
    T,
    a_row,
    a_step,
    stored_row,
    stored_step,
    W: tl.constexpr,
    BW: tl.constexpr,
    PAIRS: tl.constexpr,
    WANTS_STORED: tl.constexpr,
):
    """Writes the gradients of a, b and the stored states, given those of the states; zero for unread stored states."""
    row, entry = tl.program_id(0).to(tl.int64), tl.program_id(1) * BW + tl.arange(0, BW)
    mask, size = entry < W, W * (2 if PAIRS else 1)
    d_re = tl.zeros([BW], dtype=grad.dtype.element_ty)
    d_im = d_re
    for back in range(T):
        t = T - 1 - back
        step = row * T + t
        start = tl.load(starts + step) != 0
        g_re, g_im = _load(grad + step * size + entry, mask, W, PAIRS)
        d_re, d_im = d_re + g_re, d_im + g_im
        _store(grad_b + step * size + entry, d_re, d_im, mask, W, PAIRS)
        # Select one of two addresses instead of loading twice.
        entered = tl.where(start, stored + row * stored_row + t * stored_step, states + (step - 1) * size)
        s_re, s_im = _load(entered + entry, mask, W, PAIRS)
        g_re, g_im = _product(s_re, -s_im, d_re, d_im, PAIRS)
        _store(grad_a + step * size + entry, g_re, g_im, mask, W, PAIRS)
        a_re, a_im = _load(a + row * a_row + t * a_step + entry, mask, W, PAIRS)
        d_re, d_im = _product(a_re, -a_im, d_re, d_im, PAIRS)
        if WANTS_STORED:
            new_re, new_im = tl.where(start, d_re, 0.0), tl.where(start, d_im, 0.0)
            _store(grad_stored + step * size + entry, new_re, new_im, mask, W, PAIRS)
        d_re, d_im = tl.where(start, 0.0, d_re), tl.where(start, 0.0, d_im)
