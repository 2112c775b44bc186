"""The recurrence of GRU and LSTM, forwards and backwards.

A *lane* is a piece of a row whose steps are contiguous in memory; lanes are sorted by length, longest first. Every
program runs BM lanes and BH hidden units of all gates, multiplying BK columns of the recurrent weights at a time. Where
BH covers the hidden size, one launch runs all steps; otherwise each launch runs one step, and reads what all programs
of the launch before it wrote. Within a launch, threads read what other threads of their program wrote at the previous
step; a barrier at the end of each step makes it visible.

The stored state is read only where a start is flagged. Tiles are transposed, ``[hidden units, lanes]``, so that the
hidden size rather than the few lanes is the long side of every product. Masks zero everything beyond H; no memory is
padded.

Recurrent weights ``[K, H, H]`` come already rounded to the matmul format; other operands are rounded here.

Gates and the gradients of projections, ``[P, 4·H]``, have four blocks of H columns, in the order of
:mod:`~recurrl.recurrent.backends.triton.maths`. The first K blocks take the recurrent product, the last K the input's.

Shape legend: P steps of all rows, N lanes, H hidden size, K gates.
"""

from __future__ import annotations

import triton
import triton.language as tl

from recurrl.recurrent.backends.triton.maths import (
    activated,
    load_four,
    product,
    rounded,
    step,
    step_derivative,
    store_four,
    store_states,
    weight_tile,
)


# Specialising on these numbers would recompile the kernel whenever the data change them.
@triton.jit(do_not_specialize=["first", "last", "lanes"])
def forward(
    w_hh,
    starts,
    stored_h,
    stored_c,
    h_out,
    c_out,
    gates,
    lane_begin,
    lane_length,
    first,
    last,
    lanes,
    stored_stride,
    H: tl.constexpr,
    BH: tl.constexpr,
    BK: tl.constexpr,
    BM: tl.constexpr,
    LSTM: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Writes the states ``[P, H]`` after steps ``first`` to ``last − 1`` of each lane.

    ``gates`` holds the projections of the input with all biases, and with ``KEEP`` the gates afterwards.
    """
    lane = tl.program_id(0) * BM + tl.arange(0, BM)
    begin = tl.load(lane_begin + lane, mask=lane < lanes, other=0)
    length = tl.load(lane_length + lane, mask=lane < lanes, other=0)
    j = tl.program_id(1) * BH + tl.arange(0, BH)
    for t in range(first, tl.minimum(last, tl.max(length, 0))):
        running = t < length
        row = begin + t
        mask = (j[:, None] < H) & running[None, :]
        start = tl.load(starts + row, mask=running, other=0) != 0
        # Select one of two addresses per lane instead of loading twice.
        entering = tl.where(start, stored_h + row * stored_stride, h_out + (row - 1) * H)
        gate = row[None, :] * (4 * H) + j[:, None]
        a_0, a_1, a_2, a_3 = load_four(gates, gate, mask, H)
        for block in range(0, H, BK):
            k = block + tl.arange(0, BK)
            factor = tl.load(entering[None, :] + k[:, None], mask=(k[:, None] < H) & running[None, :], other=0.0)
            factor = rounded(factor, PRECISION)
            a_0 += product(weight_tile(w_hh, 0, j, k, H), factor, PRECISION)
            a_1 += product(weight_tile(w_hh, 1, j, k, H), factor, PRECISION)
            a_2 += product(weight_tile(w_hh, 2, j, k, H), factor, PRECISION)
            if LSTM:
                a_3 += product(weight_tile(w_hh, 3, j, k, H), factor, PRECISION)
        s_0, s_1, s_2, s_3 = activated(a_0, a_1, a_2, a_3, LSTM)
        if KEEP:
            store_four(gates, gate, s_0, s_1, s_2, s_3, mask, H)
        h = tl.load(entering[None, :] + j[:, None], mask=mask, other=0.0)
        c = h
        if LSTM:
            entering_c = tl.where(start, stored_c + row * stored_stride, c_out + (row - 1) * H)
            c = tl.load(entering_c[None, :] + j[:, None], mask=mask, other=0.0)
        h, c = step(s_0, s_1, s_2, s_3, h, c, LSTM)
        store_states(h_out, c_out, row[None, :] * H + j[:, None], h, c, mask, LSTM)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["first", "last", "lanes"])
def backward(
    w_hh_t,
    starts,
    stored_h,
    stored_c,
    h_out,
    c_out,
    gates,
    grad_h_out,
    grad_c_out,
    grad_gates,
    entered_h,
    carried,
    grad_stored_h,
    grad_stored_c,
    lane_begin,
    lane_length,
    first,
    last,
    lanes,
    stored_stride,
    H: tl.constexpr,
    BH: tl.constexpr,
    BK: tl.constexpr,
    BM: tl.constexpr,
    LSTM: tl.constexpr,
    WANTS_STORED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Writes gradients of the projections, and states before each step, for steps ``last − 1`` down to ``first``.

    ``w_hh_t`` holds each gate's square block of weights, transposed. A step t first computes the gradients of the
    states after it: the gradients of the projections of step t + 1 times the weights, plus ``carried [N, H]``, the
    gradient that bypasses the weights (h's in a GRU, c's in an LSTM). Where step t + 1 begins a segment, these are the
    gradients of its stored states instead, which ``WANTS_STORED`` writes, with zeros elsewhere. Step −1 does only that.
    """
    K: tl.constexpr = 4 if LSTM else 3
    blocks: tl.constexpr = (H + BK - 1) // BK
    lane = tl.program_id(0) * BM + tl.arange(0, BM)
    begin = tl.load(lane_begin + lane, mask=lane < lanes, other=0)
    length = tl.load(lane_length + lane, mask=lane < lanes, other=0)
    j = tl.program_id(1) * BH + tl.arange(0, BH)
    of_lane = lane[None, :].to(tl.int64) * H + j[:, None]
    in_lane = (j[:, None] < H) & (lane < lanes)[None, :]
    carry = tl.load(carried + of_lane, mask=in_lane, other=0.0)
    end = tl.minimum(last, tl.max(length, 0))
    for back in range(end - first):
        t = end - 1 - back
        row = begin + t
        has_after = t + 1 < length
        after = (j[:, None] < H) & has_after[None, :]
        grad_h, grad_c = carry, carry
        if LSTM:
            grad_h = tl.zeros_like(carry)
        for block in range(K * blocks):
            k = (block % blocks) * BK + tl.arange(0, BK)
            factor = tl.load(
                grad_gates + (row + 1)[None, :] * (4 * H) + block // blocks * H + k[:, None],
                mask=(k[:, None] < H) & has_after[None, :],
                other=0.0,
            )
            weight = weight_tile(w_hh_t, block // blocks, j, k, H)
            grad_h += product(weight, rounded(factor, PRECISION), PRECISION)
        start_after = (tl.load(starts + row + 1, mask=has_after, other=0) != 0)[None, :]
        if WANTS_STORED:
            there = (row + 1)[None, :] * H + j[:, None]
            grad_0, grad_1 = tl.where(start_after, grad_h, 0.0), tl.where(start_after, grad_c, 0.0)
            store_states(grad_stored_h, grad_stored_c, there, grad_0, grad_1, after, LSTM)
        grad_h, grad_c = tl.where(start_after, 0.0, grad_h), tl.where(start_after, 0.0, grad_c)
        running = (t < length) & (row >= begin)
        mask = (j[:, None] < H) & running[None, :]
        start = tl.load(starts + row, mask=running, other=0) != 0
        here = row[None, :] * H + j[:, None]
        gate = row[None, :] * (4 * H) + j[:, None]
        s_0, s_1, s_2, s_3 = load_four(gates, gate, mask, H)
        grad_h += tl.load(grad_h_out + here, mask=mask, other=0.0)
        entering = tl.where(start, stored_h + row * stored_stride, h_out + (row - 1) * H)
        h = tl.load(entering[None, :] + j[:, None], mask=mask, other=0.0)
        tl.store(entered_h + here, h, mask=mask)
        c, c_after = h, h
        if LSTM:
            grad_c += tl.load(grad_c_out + here, mask=mask, other=0.0)
            entering_c = tl.where(start, stored_c + row * stored_stride, c_out + (row - 1) * H)
            c = tl.load(entering_c[None, :] + j[:, None], mask=mask, other=0.0)
            c_after = tl.load(c_out + here, mask=mask, other=0.0)
        g_0, g_1, g_2, g_3, carry = step_derivative(grad_h, grad_c, h, c, c_after, s_0, s_1, s_2, s_3, LSTM)
        store_four(grad_gates, gate, g_0, g_1, g_2, g_3, mask, H)
        tl.debug_barrier()
    tl.store(carried + of_lane, carry, mask=in_lane)
