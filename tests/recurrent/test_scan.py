"""The loop in Python."""

import pytest
import torch
from parity import batch, outputs_and_gradients, resets

from recurrl.recurrent import RecurrentModule, set_recurrent_mode

ROWS, STEPS, INPUTS, HIDDEN = 12, 11, 5, 7


def make(cell, **options):
    torch.manual_seed(0)
    return RecurrentModule(cell, INPUTS, HIDDEN, recurrent_backend="scan", in_key="x", out_key="y", **options)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_gradients_of_biases_do_not_share_memory(cell):
    """Scaling one in place, as clipping does, must not scale the other."""
    module = make(cell)
    with set_recurrent_mode(True):
        module(batch(module, resets("random", ROWS, STEPS)))["y"].sum().backward()
    storages = [parameter.grad.untyped_storage().data_ptr() for parameter in module.parameters()]
    assert len(set(storages)) == len(storages)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_scan_that_recomputes_equals_eager_mode():
    module = make("lstm", recurrent_recompute="full").double()
    data = batch(module, resets("random", ROWS, STEPS))
    expected = outputs_and_gradients(module, data)
    found = outputs_and_gradients(torch.compile(module, fullgraph=True), data)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_scan_that_recomputes_takes_rows_of_any_length():
    module = make("lstm", recurrent_recompute="full")
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for steps in (9, 16, 25, 7):
        data = batch(module, resets("random", 2, steps)).select("x", "is_init")
        with set_recurrent_mode(True):
            assert torch.equal(compiled(data.copy())["y"], module(data.copy())["y"])


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_scan_that_recomputes_keeps_less():
    kept = {}
    for way in ("none", "full"):
        module = make("lstm", recurrent_recompute=way)
        sizes = []
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t),
            set_recurrent_mode(True),
        ):
            data = batch(module, resets("random", 8, 64)).select("x", "is_init")
            torch.compile(module, fullgraph=True)(data)
        kept[way] = sum(sizes)
    assert kept["full"] < 0.5 * kept["none"]
