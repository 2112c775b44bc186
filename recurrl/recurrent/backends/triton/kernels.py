"""The kernels: a whole sequence of one layer in one launch, forwards and backwards.

A program runs BM *lanes*, pieces of rows that lie in memory one step after the other, from their first step to their
last. The recurrent weights are read once, before the loop, and stay; so do the states, in registers: nothing that one
thread writes to global memory is read by another. The stored state is read only where a start is marked.

Tiles are transposed, ``[HP, BM]``, so that the hidden size, and not the few lanes, is the long side of every product.
HP is the hidden size H rounded up to a power of two; masks keep what is beyond H at zero, and no memory is padded.

What is saved for the backward pass is ``[P, 4·H]`` for both cells: (r, z, n, hₙ) and (i, f, g, o). The gradients of the
projections come out in the same order: the input's in the first three of a GRU's and in all of an LSTM's, the recurrent
one's in the first two and the last of a GRU's.

Shape legend: P steps of all rows, N lanes, H hidden size, HP its power of two, BM lanes a program, K gates.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _rounded(x, PRECISION: tl.constexpr):
    """A factor of a product in the format of its precision, rounded to the nearest."""
    if PRECISION == "bf16":
        x = x.to(tl.bfloat16)
    elif PRECISION == "bf16 emulated":
        # Of the 16 bits that bf16 drops, half of what the last kept one is worth is added first.
        x = tl.where(x == x, ((x.to(tl.int32, bitcast=True) + 0x8000) & -65536).to(tl.float32, bitcast=True), x)
    elif PRECISION == "tf32":
        # tf32 keeps 10 bits of mantissa and drops 13: half of what the last kept one is worth is added first. Added to
        # the bits of a NaN, that could give a zero.
        x = tl.where(x == x, ((x.to(tl.int32, bitcast=True) + 0x1000) & -8192).to(tl.float32, bitcast=True), x)
    return x


@triton.jit
def _product(weight, state, PRECISION: tl.constexpr):
    if PRECISION == "bf16":
        product = tl.dot(weight, _rounded(state, PRECISION))
    elif PRECISION == "bf16 emulated":
        product = tl.dot(weight, _rounded(state, PRECISION), input_precision="ieee")
    else:
        product = tl.dot(weight, _rounded(state, PRECISION), input_precision=PRECISION)
    return product


@triton.jit
def _weight(w_hh, gate, j, H: tl.constexpr, PRECISION: tl.constexpr):
    """One gate's square of the recurrent weights, ``[HP, HP]``."""
    rows, columns = j[:, None], j[None, :]
    tile = tl.load(w_hh + (gate * H + rows) * H + columns, mask=(rows < H) & (columns < H), other=0.0)
    return _rounded(tile, PRECISION)


# A kernel specialised on these numbers would be compiled anew when the data bring others.
@triton.jit(do_not_specialize=["lanes", "stored_stride"])
def forward_kernel(
    x_gates,
    w_hh,
    b_hh,
    starts,
    stored_h,
    stored_c,
    h_out,
    c_out,
    saved,
    lane_begin,
    lane_length,
    lanes,
    stored_stride,
    H: tl.constexpr,
    HP: tl.constexpr,
    BM: tl.constexpr,
    LSTM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """States ``[P, H]`` after every step, and what the backward pass needs.

    ``x_gates [P, K·H]`` is the input's projection with both biases, but a GRU's third, which has its own only.
    """
    K: tl.constexpr = 4 if LSTM else 3
    lane = tl.program_id(0) * BM + tl.arange(0, BM)
    begin = tl.load(lane_begin + lane, mask=lane < lanes, other=0)
    length = tl.load(lane_length + lane, mask=lane < lanes, other=0)
    j = tl.arange(0, HP)
    w_0 = _weight(w_hh, 0, j, H, PRECISION)
    w_1 = _weight(w_hh, 1, j, H, PRECISION)
    w_2 = _weight(w_hh, 2, j, H, PRECISION)
    if LSTM:
        w_3 = _weight(w_hh, 3, j, H, PRECISION)
    elif HAS_BIAS:
        b_n = tl.load(b_hh + 2 * H + j, mask=j < H, other=0.0)
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
        out = saved + row[None, :] * (4 * H) + j[:, None]
        a_0 = tl.load(x, mask=mask, other=0.0) + _product(w_0, h, PRECISION)
        a_1 = tl.load(x + H, mask=mask, other=0.0) + _product(w_1, h, PRECISION)
        x_2 = tl.load(x + 2 * H, mask=mask, other=0.0)
        h_2 = _product(w_2, h, PRECISION)
        if LSTM:
            i, f, g = tl.sigmoid(a_0), tl.sigmoid(a_1), _tanh(x_2 + h_2)
            o = tl.sigmoid(tl.load(x + 3 * H, mask=mask, other=0.0) + _product(w_3, h, PRECISION))
            c = f * c + i * g
            h = o * _tanh(c)
            tl.store(out, i, mask=mask)
            tl.store(out + H, f, mask=mask)
            tl.store(out + 2 * H, g, mask=mask)
            tl.store(out + 3 * H, o, mask=mask)
            tl.store(c_out + row[None, :] * H + j[:, None], c, mask=mask)
        else:
            if HAS_BIAS:
                h_2 += b_n[:, None]
            r, z = tl.sigmoid(a_0), tl.sigmoid(a_1)
            n = _tanh(x_2 + r * h_2)
            h = n + z * (h - n)
            tl.store(out, r, mask=mask)
            tl.store(out + H, z, mask=mask)
            tl.store(out + 2 * H, n, mask=mask)
            tl.store(out + 3 * H, h_2, mask=mask)
        tl.store(h_out + row[None, :] * H + j[:, None], h, mask=mask)


@triton.jit(do_not_specialize=["lanes", "stored_stride"])
def backward_kernel(
    grad_h_out,
    grad_c_out,
    w_hh_t,
    starts,
    stored_h,
    stored_c,
    h_out,
    c_out,
    saved,
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
    """Gradients ``[P, 4·H]`` of the projections and, if wanted, ``[P, H]`` of the stored states, zero where not read.

    ``w_hh_t`` holds each gate's square transposed. Also ``entered_h [P, H]``, the state that entered each step, for the
    gradient of the recurrent weights, and for a GRU ``grad_bias [programs, H]``, each program's part of the gradient of
    the third recurrent bias.
    """
    lane = tl.program_id(0) * BM + tl.arange(0, BM)
    begin = tl.load(lane_begin + lane, mask=lane < lanes, other=0)
    length = tl.load(lane_length + lane, mask=lane < lanes, other=0)
    j = tl.arange(0, HP)
    w_0 = _weight(w_hh_t, 0, j, H, PRECISION)
    w_1 = _weight(w_hh_t, 1, j, H, PRECISION)
    w_2 = _weight(w_hh_t, 2, j, H, PRECISION)
    if LSTM:
        w_3 = _weight(w_hh_t, 3, j, H, PRECISION)
    grad_h = tl.zeros((HP, BM), tl.float32)
    grad_c = tl.zeros((HP, BM), tl.float32)
    bias = tl.zeros((HP, BM), tl.float32)
    steps = tl.max(length, 0)
    for back in range(steps):
        # Shorter lanes wait: until their last step comes, all they load is zero.
        t = steps - 1 - back
        running = t < length
        row = begin + t
        mask = (j[:, None] < H) & running[None, :]
        start = (tl.load(starts + row, mask=running, other=0) != 0)[None, :]
        here = row[None, :] * H + j[:, None]
        stored = row[None, :] * stored_stride + j[:, None]
        gate = row[None, :] * (4 * H) + j[:, None]
        s_0 = tl.load(saved + gate, mask=mask, other=0.0)
        s_1 = tl.load(saved + gate + H, mask=mask, other=0.0)
        s_2 = tl.load(saved + gate + 2 * H, mask=mask, other=0.0)
        s_3 = tl.load(saved + gate + 3 * H, mask=mask, other=0.0)
        grad_h += tl.load(grad_h_out + here, mask=mask, other=0.0)
        h = tl.load(h_out + here - H, mask=mask & ~start, other=0.0)
        h += tl.load(stored_h + stored, mask=mask & start, other=0.0)
        tl.store(entered_h + here, h, mask=mask)
        if LSTM:
            grad_c += tl.load(grad_c_out + here, mask=mask, other=0.0)
            entered = tl.load(c_out + here - H, mask=mask & ~start, other=0.0)
            entered += tl.load(stored_c + stored, mask=mask & start, other=0.0)
            tanh_c = _tanh(tl.load(c_out + here, mask=mask, other=0.0))
            grad_c += grad_h * s_3 * (1 - tanh_c * tanh_c)
            g_0 = grad_c * s_2 * s_0 * (1 - s_0)
            g_1 = grad_c * entered * s_1 * (1 - s_1)
            g_2 = grad_c * s_0 * (1 - s_2 * s_2)
            g_3 = grad_h * tanh_c * s_3 * (1 - s_3)
            grad_c = tl.where(mask, grad_c * s_1, grad_c)
            before = _product(w_0, g_0, PRECISION) + _product(w_1, g_1, PRECISION)
            before += _product(w_2, g_2, PRECISION) + _product(w_3, g_3, PRECISION)
            if WANTS_STORED:
                tl.store(grad_stored_c + here, tl.where(start, grad_c, 0.0), mask=mask)
            grad_c = tl.where(start & mask, 0.0, grad_c)
        else:
            g_2 = grad_h * (1 - s_1) * (1 - s_2 * s_2)
            g_3 = g_2 * s_0
            g_0 = g_2 * s_3 * s_0 * (1 - s_0)
            g_1 = grad_h * (h - s_2) * s_1 * (1 - s_1)
            before = grad_h * s_1 + _product(w_0, g_0, PRECISION)
            before += _product(w_1, g_1, PRECISION) + _product(w_2, g_3, PRECISION)
            bias += tl.where(mask, g_3, 0.0)
        tl.store(grad_gates + gate, g_0, mask=mask)
        tl.store(grad_gates + gate + H, g_1, mask=mask)
        tl.store(grad_gates + gate + 2 * H, g_2, mask=mask)
        tl.store(grad_gates + gate + 3 * H, g_3, mask=mask)
        if WANTS_STORED:
            tl.store(grad_stored_h + here, tl.where(start, before, 0.0), mask=mask)
        grad_h = tl.where(mask, tl.where(start, 0.0, before), grad_h)
    if not LSTM:
        tl.store(grad_bias + tl.program_id(0) * H + j, tl.sum(bias, 1), mask=j < H)
