"""The triton kernels match the reference and round as they say, under triton's interpreter without a GPU."""

from itertools import product

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parity import PATTERNS, batch, outputs_and_gradients, relative_errors, resets, sequence
from triton_layers import SIGNIFICANT_BITS, WAYS, assert_within, errors, make, small_tiles, to_significant_bits

from recurrl.recurrent.backends.triton import loop, maths, tiles

pytestmark = pytest.mark.usefixtures("poisoned_memory")

# Relative error norm of full float32. tf32 and bf16 are compared with a reference that rounds the same operands. What
# remains: an operand near the midpoint of two representable numbers may round either way, because the reference's exact
# sum and the kernel's float32 sum lie on different sides of it. If the sums differ by a relative ε and the format's
# spacing is u, this affects ε/u of the operands; each is then off by u, and their norm by √(ε·u). ε is taken as half of
# the float32 tolerance. (Without that rounding the reference is 1e-4 to 5e-4 and 1e-3 to 7e-3 away.)
TOLERANCE = 2e-5
TOLERANCES = {
    "ieee": TOLERANCE,
    "tf32x3": TOLERANCE,
    **{precision: (TOLERANCE / 2 * 2.0 ** (1 - bits)) ** 0.5 for precision, bits in SIGNIFICANT_BITS.items()},
}


def every_pattern(steps):
    """Reset flags with one row per pattern, including random resets."""
    return torch.cat([resets(pattern, 1, steps) for pattern in PATTERNS])


SIZES = [24, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 17, 50, 64, 96, 128, 200, 256, 512))]


@pytest.mark.parametrize(("precision", "recompute"), [*((each, "none") for each in TOLERANCES), ("ieee", "full")])
@pytest.mark.parametrize("hidden", SIZES)
def test_kernels_equal_the_reference_that_rounds_the_same_operands(cell, hidden, precision, recompute):
    """Each row of the batch has a different reset pattern."""
    module = make(cell, hidden, precision=precision, **WAYS[recompute])
    data = batch(module, every_pattern(7 if hidden <= 64 else 3))
    assert_within(module, data, TOLERANCES[precision], rounding_of=precision)


@pytest.mark.parametrize(("precision", "other"), [("ieee", "tf32"), ("tf32", "bf16"), ("bf16", "ieee")])
def test_a_different_rounding_is_detected(cell, precision, other):
    module = make(cell, 24, precision=precision)
    relative = errors(module, batch(module, every_pattern(7)), rounding_of=other)
    assert max(relative.values()) > TOLERANCES[other]


@pytest.mark.parametrize("recompute", WAYS)
def test_one_launch_a_step_equals_the_reference(cell, recompute, one_launch_a_step):
    assert_within(make(cell, 17, **WAYS[recompute]), batch(make(cell, 17), every_pattern(4)), TOLERANCE)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), rows=st.integers(1, 4), steps=st.integers(1, 4), recompute=st.sampled_from(list(WAYS)))
def test_any_resets_in_any_size(data, rows, steps, recompute, monkeypatch):
    module = make(data.draw(st.sampled_from(tiles.CELLS)), 17, **WAYS[recompute])
    inputs = batch(module, resets("none", rows, steps))
    flags = data.draw(st.lists(st.booleans(), min_size=rows * steps, max_size=rows * steps))
    inputs["is_init"] = torch.tensor(flags).reshape(rows, steps, 1)
    with monkeypatch.context() as patch:
        if data.draw(st.booleans(), "one launch a step"):
            patch.setattr(tiles, "configuration", small_tiles)
        assert_within(module, inputs, TOLERANCE)


@pytest.mark.slow
def test_the_largest_size_equals_the_reference(cell):
    module = make(cell, tiles.MAX_HIDDEN_SIZE, precision="tf32x3")
    assert_within(module, batch(module, resets("random", 2, 2)), TOLERANCE)


@pytest.mark.parametrize("options", [{"num_layers": 2}, {"bias": False, "bidirectional": True}], ids=str)
def test_layers_directions_and_no_bias(cell, options):
    assert_within(make(cell, 6, **options), batch(make(cell, 6, **options), resets("random", 5, 7)), TOLERANCE)


def test_a_projection_is_not_possible():
    with pytest.raises(ValueError, match=r"proj_size=3 is not supported by backend=triton, .* Choose backend=pad"):
        make("lstm", 17, proj_size=3)


@pytest.mark.parametrize(("cell", "precision"), [("gru", "tf32"), ("lstm", "bf16")])
def test_all_ways_to_compute_a_layer_round_the_same_operands(cell, precision, monkeypatch):
    """They differ only in the order of float32 sums, far less than by differently rounded operands."""
    results = []
    for configuration, way in product((tiles.configuration, small_tiles), WAYS.values()):
        monkeypatch.setattr(tiles, "configuration", configuration)
        module = make(cell, 24, precision=precision, **way)
        results.append(outputs_and_gradients(module, batch(module, resets("random", 3, 4))))
    for other in results[1:]:
        assert max(relative_errors(other, results[0]).values()) < 2e-5


def test_a_loss_of_the_output_alone_has_its_gradients(cell):
    modules = make(cell, 6), make(cell, 6, "scan")
    data = batch(modules[0], resets("random", 5, 7))
    losses = [sequence(module, data)["y"].square().sum() for module in modules]
    gradients, expected = map(torch.autograd.grad, losses, [list(module.parameters()) for module in modules])
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-5)


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
    results, expected = (outputs_and_gradients(each, data) for each in (module, rounded))
    torch.testing.assert_close(results, expected, rtol=0, atol=0)
