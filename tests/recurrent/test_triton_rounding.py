"""Rounding of the triton kernels' matmul operands, before and during a launch."""

import pytest
import torch
import triton
import triton.language as tl
from parity import batch, outputs_and_gradients, resets
from triton_layers import SIGNIFICANT_BITS, make, to_significant_bits

from recurrl.recurrent.backends.triton import loop, maths


@triton.jit
def round_256(x, out, PRECISION):
    k = tl.arange(0, 256)
    tl.store(out + k, maths.rounded(tl.load(x + k), PRECISION))


@pytest.mark.parametrize("precision", ["tf32", "bf16 emulated"])
def test_weights_and_states_are_rounded_to_nearest_and_what_is_not_finite_stays(precision):
    x, out = torch.randn(256, generator=torch.Generator().manual_seed(0)), torch.zeros(256)
    x[0] = -torch.inf
    x[1:4] = torch.tensor([0x7FC00000, 0x7FFFFFFF, -1]).int().view(torch.float32)  # NaN: torch's, a GPU's, negative
    round_256[(1,)](x, out, PRECISION=precision)
    torch.testing.assert_close(loop.rounded(x, precision), out, rtol=0, atol=0, equal_nan=True)
    assert out[0] == -torch.inf
    assert out[1:4].isnan().all()
    bits = SIGNIFICANT_BITS[precision.removesuffix(" emulated")]
    assert torch.equal(out[4:], to_significant_bits(x[4:], bits))


def test_the_compute_dtype_selects_the_precision():
    module = make("gru", 6, precision="ieee", recurrent_compute_dtype=torch.bfloat16)
    rounded = make("gru", 6, precision="bf16")
    data = batch(module, resets("random", 5, 7))
    results, expected = (outputs_and_gradients(m, data) for m in (module, rounded))
    assert all(torch.equal(results[name], expected[name]) for name in expected)
