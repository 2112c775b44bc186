"""Maths shared by all kernels: matmuls in each precision, one step of a cell, and its derivative.

Pre-activations, gates and projection gradients have four tiles for either cell: (hₙ, r, z, n) for a GRU, where hₙ is
the recurrent projection of the gate n, kept separate; (i, f, g, o) for an LSTM.

Shape legend: H hidden size; a tile is [hidden units, lanes].
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    # Near zero the difference would lose digits, so there it is the Taylor series.
    square = x * x
    series = x * (1 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315))))
    return tl.where(square < 0.04, series, 2 * tl.sigmoid(2 * x) - 1)


@triton.jit
def rounded(x, PRECISION: tl.constexpr):
    """Rounds a matmul operand to the nearest value of its precision's format."""
    if PRECISION == "bf16":
        x = x.to(tl.bfloat16)
    elif PRECISION == "bf16 emulated":
        # bf16 drops 16 bits: add half a unit of the last kept bit, then truncate.
        x = tl.where(x == x, ((x.to(tl.int32, bitcast=True) + 0x8000) & -65536).to(tl.float32, bitcast=True), x)
    elif PRECISION == "tf32":
        # tf32 keeps 10 bits of mantissa and drops 13: add half a unit of the last kept bit, then truncate. Added to
        # the bits of a NaN, that could give a zero.
        x = tl.where(x == x, ((x.to(tl.int32, bitcast=True) + 0x1000) & -8192).to(tl.float32, bitcast=True), x)
    return x


@triton.jit
def product(weight, state, PRECISION: tl.constexpr):
    """``weight @ state`` of rounded operands, accumulated in float32."""
    if PRECISION == "bf16":
        result = tl.dot(weight, state)
    elif PRECISION == "bf16 emulated":
        result = tl.dot(weight, state, input_precision="ieee")
    else:
        result = tl.dot(weight, state, input_precision=PRECISION)
    return result


@triton.jit
def weight_tile(w_hh, gate, j, k, H: tl.constexpr):
    """Loads rows ``j`` and columns ``k`` of one gate's square block of the (already rounded) recurrent weights."""
    rows, columns = j[:, None], k[None, :]
    return tl.load(w_hh + (gate * H + rows) * H + columns, mask=(rows < H) & (columns < H), other=0.0)


@triton.jit
def activated(a_0, a_1, a_2, a_3, LSTM: tl.constexpr):
    """The gates from their pre-activations."""
    s_1 = tl.sigmoid(a_1)
    if LSTM:
        s_0, s_2, s_3 = tl.sigmoid(a_0), _tanh(a_2), tl.sigmoid(a_3)
    else:
        s_0, s_2, s_3 = a_0, tl.sigmoid(a_2), _tanh(a_3 + s_1 * a_0)
    return s_0, s_1, s_2, s_3


@triton.jit
def step(s_0, s_1, s_2, s_3, h, c, LSTM: tl.constexpr):
    """The states (h, c) after a step, from its gates and the states before it. A GRU has no c."""
    if LSTM:
        c = s_1 * c + s_0 * s_2
        h = s_3 * _tanh(c)
    else:
        h = s_3 + s_2 * (h - s_3)
    return h, c


@triton.jit
def step_derivative(grad_h, grad_c, h, c, c_after, s_0, s_1, s_2, s_3, LSTM: tl.constexpr):
    """From the gradients of the states after a step, computes those of its four projections, and the part of the
    gradient of the state before it that bypasses the recurrent matmul: of c for an LSTM, of h for a GRU.
    """
    if LSTM:
        tanh_c = _tanh(c_after)
        grad_c += grad_h * s_3 * (1 - tanh_c * tanh_c)
        g_0 = grad_c * s_2 * s_0 * (1 - s_0)
        g_1 = grad_c * c * s_1 * (1 - s_1)
        g_2 = grad_c * s_0 * (1 - s_2 * s_2)
        g_3 = grad_h * tanh_c * s_3 * (1 - s_3)
        direct = grad_c * s_1
    else:
        g_3 = grad_h * (1 - s_2) * (1 - s_3 * s_3)
        g_0 = g_3 * s_1
        g_1 = g_3 * s_0 * s_1 * (1 - s_1)
        g_2 = grad_h * (h - s_3) * s_2 * (1 - s_2)
        direct = grad_h * s_2
    return g_0, g_1, g_2, g_3, direct


@triton.jit
def load_four(base, offset, mask, H: tl.constexpr):
    """Loads four tiles H columns apart, zero where masked."""
    return (
        tl.load(base + offset, mask=mask, other=0.0),
        tl.load(base + offset + H, mask=mask, other=0.0),
        tl.load(base + offset + 2 * H, mask=mask, other=0.0),
        tl.load(base + offset + 3 * H, mask=mask, other=0.0),
    )


@triton.jit
def store_four(base, offset, t_0, t_1, t_2, t_3, mask, H: tl.constexpr):
    """Stores four tiles H columns apart."""
    tl.store(base + offset, t_0, mask=mask)
    tl.store(base + offset + H, t_1, mask=mask)
    tl.store(base + offset + 2 * H, t_2, mask=mask)
    tl.store(base + offset + 3 * H, t_3, mask=mask)


@triton.jit
def store_states(h_base, c_base, offset, h, c, mask, LSTM: tl.constexpr):
    """Stores the states h and, for an LSTM, c."""
    tl.store(h_base + offset, h, mask=mask)
    if LSTM:
        tl.store(c_base + offset, c, mask=mask)
