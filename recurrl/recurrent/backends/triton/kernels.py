"""Kernels of the recurrence: with resident recurrent weights, or one launch per step.

A *lane* is a piece of a row whose steps are contiguous in memory; lanes are sorted by length, longest first. Every
program runs BM lanes.

*Resident*: one launch runs all steps. The recurrent weights are read once, before the loop, and stay on the chip, as do
the states, in registers. *Step*: one launch runs one step. A program computes BH hidden units of all gates, multiplying
BK columns at a time; a step reads what the previous launch wrote. In neither does a thread read global memory that
another thread wrote in the same launch.

The stored state is read only where a start is flagged. Tiles are transposed, ``[hidden units, lanes]``, so that the
hidden size rather than the few lanes is the long side of every product. Masks zero everything beyond H; no memory is
padded.

Recurrent weights come already rounded to the matmul format; other operands are rounded here.

Gates and projection gradients have the four columns of :mod:`maths`, ``[P, 4·H]``.

Shape legend: P steps of all rows, N lanes, H hidden size, HP its power of two, BM lanes a program, K gates.
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
@triton.jit(do_not_specialize=["lanes"])
def resident_forward(
    x_gates,
    w_hh,
    bias,
    starts,
    stored_h,
    stored_c,
    h_out,
    c_out,
    gates,
    lane_begin,
    lane_length,
    lanes,
    stored_stride,
    H: tl.constexpr,
    HP: tl.constexpr,
    BM: tl.constexpr,
    LSTM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Writes the states ``[P, H]`` after every step and, with ``KEEP``, the gates.

    ``x_gates [P, K·H]`` includes the biases, except the fourth of a GRU's ``bias [4, H]``.
    """
    K: tl.constexpr = 4 if LSTM else 3
    lane = tl.program_id(0) * BM + tl.arange(0, BM)
    begin = tl.load(lane_begin + lane, mask=lane < lanes, other=0)
    length = tl.load(lane_length + lane, mask=lane < lanes, other=0)
    j = tl.arange(0, HP)
    w_0 = weight_tile(w_hh, 0, j, j, H)
    w_1 = weight_tile(w_hh, 1, j, j, H)
    w_2 = weight_tile(w_hh, 2, j, j, H)
    if LSTM:
        w_3 = weight_tile(w_hh, 3, j, j, H)
    elif HAS_BIAS:
        b_3 = tl.load(bias + 3 * H + j, mask=j < H, other=0.0)
    h = tl.zeros((HP, BM), tl.float32)
    c = tl.zeros((HP, BM), tl.float32)
    for t in range(tl.max(length, 0)):
        running = t < length
        row = begin + t
        mask = (j[:, None] < H) & running[None, :]
        start = tl.load(starts + row, mask=running, other=0) != 0
        at_start = mask & start[None, :]
        stored = row[None, :] * stored_stride + j[:, None]
        h = tl.where(start[None, :], tl.load(stored_h + stored, mask=at_start, other=0.0), h)
        if LSTM:
            c = tl.where(start[None, :], tl.load(stored_c + stored, mask=at_start, other=0.0), c)
        x = x_gates + row[None, :] * (K * H) + j[:, None]
        factor = rounded(h, PRECISION)
        a_0 = tl.load(x, mask=mask, other=0.0) + product(w_0, factor, PRECISION)
        a_1 = tl.load(x + H, mask=mask, other=0.0) + product(w_1, factor, PRECISION)
        a_2 = tl.load(x + 2 * H, mask=mask, other=0.0)
        h_2 = product(w_2, factor, PRECISION)
        if LSTM:
            a_2 += h_2
            a_3 = tl.load(x + 3 * H, mask=mask, other=0.0) + product(w_3, factor, PRECISION)
        else:
            a_3 = h_2
            if HAS_BIAS:
                a_3 += b_3[:, None]
        s_0, s_1, s_2, s_3 = activated(a_0, a_1, a_2, a_3, LSTM)
        h, c = step(s_0, s_1, s_2, s_3, h, c, LSTM)
        here = row[None, :] * H + j[:, None]
        store_states(h_out, c_out, here, h, c, mask, LSTM)
        if KEEP:
            store_four(gates, row[None, :] * (4 * H) + j[:, None], s_0, s_1, s_2, s_3, mask, H)


@triton.jit(do_not_specialize=["lanes"])
def resident_backward(
    grad_h_out,
    grad_c_out,
    w_hh_t,
    starts,
    stored_h,
    stored_c,
    h_out,
    c_out,
    gates,
    grad_gates,
    entered_h,
    grad_bias,
    grad_stored_h,
    grad_stored_c,
    lane_begin,
    lane_length,
    lanes,
    stored_stride,
    H: tl.constexpr,
    HP: tl.constexpr,
    BM: tl.constexpr,
    LSTM: tl.constexpr,
    WANTS_STORED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Writes the gradients of the projections and, with ``WANTS_STORED``, of the stored states ``[P, H]``, zero where
    not read.

    ``w_hh_t`` holds each gate's square transposed. Also writes the state before each step, for the gradient of the
    recurrent weights, and ``grad_bias [programs, 4·H]``, each program's sum of the projections' gradients.
    """
    lane = tl.program_id(0) * BM + tl.arange(0, BM)
    begin = tl.load(lane_begin + lane, mask=lane < lanes, other=0)
    length = tl.load(lane_length + lane, mask=lane < lanes, other=0)
    j = tl.arange(0, HP)
    w_0 = weight_tile(w_hh_t, 0, j, j, H)
    w_1 = weight_tile(w_hh_t, 1, j, j, H)
    w_2 = weight_tile(w_hh_t, 2, j, j, H)
    if LSTM:
        w_3 = weight_tile(w_hh_t, 3, j, j, H)
    grad_h = tl.zeros((HP, BM), tl.float32)
    grad_c = tl.zeros((HP, BM), tl.float32)
    b_0 = tl.zeros((HP, BM), tl.float32)
    b_1 = tl.zeros((HP, BM), tl.float32)
    b_2 = tl.zeros((HP, BM), tl.float32)
    b_3 = tl.zeros((HP, BM), tl.float32)
    end = tl.max(length, 0)
    for back in range(end):
        # Until a shorter lane reaches its last step it loads zeros, and its gradients are zero.
        t = end - 1 - back
        running = t < length
        row = begin + t
        mask = (j[:, None] < H) & running[None, :]
        start = (tl.load(starts + row, mask=running, other=0) != 0)[None, :]
        here = row[None, :] * H + j[:, None]
        stored = row[None, :] * stored_stride + j[:, None]
        gate = row[None, :] * (4 * H) + j[:, None]
        s_0, s_1, s_2, s_3 = load_four(gates, gate, mask, H)
        grad_h += tl.load(grad_h_out + here, mask=mask, other=0.0)
        h = tl.load(h_out + here - H, mask=mask & ~start, other=0.0)
        h += tl.load(stored_h + stored, mask=mask & start, other=0.0)
        tl.store(entered_h + here, h, mask=mask)
        c, c_after = grad_c, grad_c
        if LSTM:
            grad_c += tl.load(grad_c_out + here, mask=mask, other=0.0)
            c = tl.load(c_out + here - H, mask=mask & ~start, other=0.0)
            c += tl.load(stored_c + stored, mask=mask & start, other=0.0)
            c_after = tl.load(c_out + here, mask=mask, other=0.0)
        g_0, g_1, g_2, g_3, before, before_c = step_derivative(grad_h, grad_c, h, c, c_after, s_0, s_1, s_2, s_3, LSTM)
        store_four(grad_gates, gate, g_0, g_1, g_2, g_3, mask, H)
        b_0 += g_0
        b_1 += g_1
        b_2 += g_2
        b_3 += g_3
        before += product(w_0, rounded(g_0, PRECISION), PRECISION) + product(w_1, rounded(g_1, PRECISION), PRECISION)
        if LSTM:
            before += product(w_2, rounded(g_2, PRECISION), PRECISION)
            before += product(w_3, rounded(g_3, PRECISION), PRECISION)
        else:
            before += product(w_2, rounded(g_3, PRECISION), PRECISION)
        if WANTS_STORED:
            grad_0, grad_1 = tl.where(start, before, 0.0), tl.where(start, before_c, 0.0)
            store_states(grad_stored_h, grad_stored_c, here, grad_0, grad_1, mask, LSTM)
        grad_h = tl.where(start, 0.0, before)
        if LSTM:
            grad_c = tl.where(start, 0.0, before_c)
    of_program = tl.program_id(0).to(tl.int64) * (4 * H) + j
    store_four(grad_bias, of_program, tl.sum(b_0, 1), tl.sum(b_1, 1), tl.sum(b_2, 1), tl.sum(b_3, 1), j < H, H)


@triton.jit(do_not_specialize=["t", "lanes"])
def step_forward(
    x_gates,
    w_hh,
    bias,
    starts,
    stored_h,
    stored_c,
    h_out,
    c_out,
    gates,
    lane_begin,
    t,
    lanes,
    stored_stride,
    H: tl.constexpr,
    BH: tl.constexpr,
    BK: tl.constexpr,
    BM: tl.constexpr,
    LSTM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Like :func:`resident_forward`, for step ``t`` of the ``lanes`` that have one."""
    K: tl.constexpr = 4 if LSTM else 3
    lane = tl.program_id(0) * BM + tl.arange(0, BM)
    running = lane < lanes
    row = tl.load(lane_begin + lane, mask=running, other=0) + t
    start = tl.load(starts + row, mask=running, other=0) != 0
    # Select one of two addresses per lane instead of loading twice: the loop is all matmuls and loads.
    entering = tl.where(start, stored_h + row * stored_stride, h_out + (row - 1) * H)
    j = tl.program_id(1) * BH + tl.arange(0, BH)
    a_0 = tl.zeros((BH, BM), tl.float32)
    a_1 = tl.zeros((BH, BM), tl.float32)
    a_2 = tl.zeros((BH, BM), tl.float32)
    a_3 = tl.zeros((BH, BM), tl.float32)
    for block in range(0, H, BK):
        k = block + tl.arange(0, BK)
        factor = tl.load(entering[None, :] + k[:, None], mask=(k[:, None] < H) & running[None, :], other=0.0)
        factor = rounded(factor, PRECISION)
        a_0 += product(weight_tile(w_hh, 0, j, k, H), factor, PRECISION)
        a_1 += product(weight_tile(w_hh, 1, j, k, H), factor, PRECISION)
        h_2 = product(weight_tile(w_hh, 2, j, k, H), factor, PRECISION)
        if LSTM:
            a_2 += h_2
            a_3 += product(weight_tile(w_hh, 3, j, k, H), factor, PRECISION)
        else:
            a_3 += h_2
    mask = (j[:, None] < H) & running[None, :]
    x = x_gates + row[None, :] * (K * H) + j[:, None]
    a_0 += tl.load(x, mask=mask, other=0.0)
    a_1 += tl.load(x + H, mask=mask, other=0.0)
    a_2 += tl.load(x + 2 * H, mask=mask, other=0.0)
    if LSTM:
        a_3 += tl.load(x + 3 * H, mask=mask, other=0.0)
    elif HAS_BIAS:
        a_3 += tl.load(bias + 3 * H + j, mask=j < H, other=0.0)[:, None]
    s_0, s_1, s_2, s_3 = activated(a_0, a_1, a_2, a_3, LSTM)
    if KEEP:
        store_four(gates, row[None, :] * (4 * H) + j[:, None], s_0, s_1, s_2, s_3, mask, H)
    h = tl.load(entering[None, :] + j[:, None], mask=mask, other=0.0)
    c = h
    if LSTM:
        entering_c = tl.where(start, stored_c + row * stored_stride, c_out + (row - 1) * H)
        c = tl.load(entering_c[None, :] + j[:, None], mask=mask, other=0.0)
    h, c = step(s_0, s_1, s_2, s_3, h, c, LSTM)
    store_states(h_out, c_out, row[None, :] * H + j[:, None], h, c, mask, LSTM)


@triton.jit(do_not_specialize=["t", "lanes", "lanes_after", "part"])
def step_backward(
    grad_h_out,
    grad_c_out,
    w_hh_t,
    starts,
    stored_h,
    stored_c,
    h_out,
    c_out,
    gates,
    grad_gates,
    entered_h,
    grad_bias,
    grad_stored_h,
    grad_stored_c,
    carried_h,
    carried_c,
    carry_h,
    carry_c,
    lane_begin,
    t,
    lanes,
    lanes_after,
    part,
    stored_stride,
    H: tl.constexpr,
    BH: tl.constexpr,
    BK: tl.constexpr,
    BM: tl.constexpr,
    LSTM: tl.constexpr,
    AFTER: tl.constexpr,
    HERE: tl.constexpr,
    WANTS_STORED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Like :func:`resident_backward`, for step ``t``, in two optional parts.

    ``AFTER``: the gradient of the states before step t + 1, from projection gradients the previous launch wrote.
    ``HERE``: from it the gradients of the projections of step t.

    ``carried [N, H]`` comes from the previous launch: the gradients that reach the states directly (none for an LSTM's
    h). This launch's sums go to ``grad_bias[part + program]``.
    """
    K: tl.constexpr = 4 if LSTM else 3
    lane = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BH + tl.arange(0, BH)
    row = tl.load(lane_begin + lane, mask=lane < lanes, other=0) + t
    in_h = j[:, None] < H
    after = in_h & (lane < lanes_after)[None, :]
    of_lane = lane[None, :].to(tl.int64) * H + j[:, None]
    grad_h = tl.zeros((BH, BM), tl.float32)
    grad_c = tl.zeros((BH, BM), tl.float32)
    if not (AFTER and LSTM):
        grad_h = tl.load(carried_h + of_lane, mask=after, other=0.0)
    if LSTM:
        grad_c = tl.load(carried_c + of_lane, mask=after, other=0.0)
    if AFTER:
        blocks = (H + BK - 1) // BK
        for block in range(K * blocks):
            gate = block // blocks
            k = (block % blocks) * BK + tl.arange(0, BK)
            # A GRU's third gate has its recurrent projection separate, in the last columns.
            column = gate if LSTM else gate + gate // 2
            factor = tl.load(
                grad_gates + (row + 1)[None, :] * (4 * H) + column * H + k[:, None],
                mask=(k[:, None] < H) & (lane < lanes_after)[None, :],
                other=0.0,
            )
            grad_h += product(weight_tile(w_hh_t, gate, j, k, H), rounded(factor, PRECISION), PRECISION)
        start = (tl.load(starts + row + 1, mask=lane < lanes_after, other=0) != 0)[None, :]
        if WANTS_STORED:
            there = (row + 1)[None, :] * H + j[:, None]
            grad_0, grad_1 = tl.where(start, grad_h, 0.0), tl.where(start, grad_c, 0.0)
            store_states(grad_stored_h, grad_stored_c, there, grad_0, grad_1, after, LSTM)
        grad_h = tl.where(start, 0.0, grad_h)
        grad_c = tl.where(start, 0.0, grad_c)
    if HERE:
        running = lane < lanes
        mask = in_h & running[None, :]
        start = tl.load(starts + row, mask=running, other=0) != 0
        here = row[None, :] * H + j[:, None]
        gate = row[None, :] * (4 * H) + j[:, None]
        s_0, s_1, s_2, s_3 = load_four(gates, gate, mask, H)
        grad_h += tl.load(grad_h_out + here, mask=mask, other=0.0)
        entering = tl.where(start, stored_h + row * stored_stride, h_out + (row - 1) * H)
        h = tl.load(entering[None, :] + j[:, None], mask=mask, other=0.0)
        tl.store(entered_h + here, h, mask=mask)
        c, c_after = grad_c, grad_c
        if LSTM:
            grad_c += tl.load(grad_c_out + here, mask=mask, other=0.0)
            entering_c = tl.where(start, stored_c + row * stored_stride, c_out + (row - 1) * H)
            c = tl.load(entering_c[None, :] + j[:, None], mask=mask, other=0.0)
            c_after = tl.load(c_out + here, mask=mask, other=0.0)
        g_0, g_1, g_2, g_3, grad_h, grad_c = step_derivative(grad_h, grad_c, h, c, c_after, s_0, s_1, s_2, s_3, LSTM)
        store_four(grad_gates, gate, g_0, g_1, g_2, g_3, mask, H)
        of_part = (part + tl.program_id(0)).to(tl.int64) * (4 * H) + j
        # Masked lanes loaded zeros and have zero gradient.
        store_four(grad_bias, of_part, tl.sum(g_0, 1), tl.sum(g_1, 1), tl.sum(g_2, 1), tl.sum(g_3, 1), j < H, H)
        if LSTM:
            tl.store(carry_c + of_lane, grad_c, mask=mask)
        else:
            tl.store(carry_h + of_lane, grad_h, mask=mask)
