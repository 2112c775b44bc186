"""Shared by tests of the triton kernels: layers, and the reference they are compared with."""

from contextlib import contextmanager
from functools import partialmethod
from unittest import mock

import torch
from parity import outputs_and_gradients, relative_errors

from recurrl.recurrent import RecurrentModule
from recurrl.recurrent.gated import GatedCell

WAYS = {"none": {}, "full": {"recurrent_recompute": "full"}}
SIGNIFICANT_BITS = {"tf32": 11, "bf16": 8}
"""Of the recurrent matmul's operands. (The interpreter computes tf32x3 in full float32.)"""


def make(cell, hidden, backend="triton", precision="ieee", **options):
    """A layer with four inputs and fixed weights."""
    torch.manual_seed(0)
    precision = precision if backend == "triton" else "auto"
    options |= {"recurrent_backend": backend, "recurrent_matmul_precision": precision}
    return RecurrentModule(cell, 4, hidden, in_key="x", out_key="y", **options)


def small_tiles(*_):
    """A configuration by which more than 16 features need several programs, and so a launch for each step."""
    return {"BM": 16, "BH": 16, "BK": 16, "num_warps": 4, "num_stages": 2}


def errors(module, data, rounding_of=None):
    """Errors of the output, the states and all gradients, relative to the reference in float64.

    Args:
        module: the module to test.
        data: its inputs.
        rounding_of: a precision to which the reference rounds its recurrent operands.
    """
    layers, cell = module.layers, module.cell
    options = {"num_layers": layers.num_layers, "bias": cell.bias, "bidirectional": layers.bidirectional}
    truth = make(cell.name, layers.hidden_size, "reference", **options).double()
    truth.load_state_dict(module.state_dict())
    with _products_rounded(SIGNIFICANT_BITS.get(rounding_of or "")):
        expected = outputs_and_gradients(truth.to(next(module.parameters()).device), data)
    return relative_errors(outputs_and_gradients(module, data), expected)


def assert_within(module, data, tolerance, rounding_of=None):
    """Asserts that all errors are below the tolerance."""
    for name, error in errors(module, data, rounding_of).items():
        assert error < tolerance, f"{name}: {error:.1e}"


def to_significant_bits(x, bits):
    """Rounds to the nearest number with this many bits, including the leading one."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent)


@contextmanager
def _products_rounded(bits):
    """Makes the reference round both operands of its recurrent matmuls, forwards and backwards."""
    if bits is None:
        yield
        return
    with mock.patch.object(GatedCell, "project_state", partialmethod(_rounded_product, bits)):
        yield


def _rounded_product(cell, bits, weights, h_BH):
    h_gates_BG = _RoundedProduct.apply(h_BH, weights["weight_hh"], bits)
    return h_gates_BG + weights["bias_hh"] if cell.bias else h_gates_BG


class _RoundedProduct(torch.autograd.Function):
    """``h @ wᵀ`` of rounded operands, summed exactly. The weight gradient, which torch computes, is not rounded."""

    @staticmethod
    def forward(ctx, h_BH, w_GH, bits):
        ctx.save_for_backward(h_BH, w_GH)
        ctx.bits = bits
        return to_significant_bits(h_BH, bits) @ to_significant_bits(w_GH, bits).t()

    @staticmethod
    def backward(ctx, grad_BG):
        h_BH, w_GH = ctx.saved_tensors
        through_h = to_significant_bits(grad_BG, ctx.bits) @ to_significant_bits(w_GH, ctx.bits)
        return through_h, grad_BG.t() @ h_BH, None
