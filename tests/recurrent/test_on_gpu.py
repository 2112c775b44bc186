"""The recurrent layer on a CUDA device: `pytest -m gpu`."""

import pytest
import torch
from parity import PATTERNS, batch, outputs_and_gradients, relative_errors, resets, sequence
from tensordict import TensorDict
from triton_layers import WAYS, assert_within, make

pytestmark = pytest.mark.gpu

# Relative error norm against the float64 reference; the unit roundoff is 5e-4 (tf32) and 4e-3 (bf16).
TOLERANCES = {"ieee": 2e-5, "tf32x3": 2e-5, "tf32": 2e-3, "bf16": 2e-2}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("recompute", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("hidden", [1, 17, 64, 96, 128, 200, 512, 1024])
@pytest.mark.parametrize("precision", TOLERANCES)
def test_kernels_equal_the_reference(cell, precision, hidden, recompute, pattern):
    module = make(cell, hidden, precision=precision, **recompute).cuda()
    assert_within(module, batch(module, resets(pattern, 37, 21)), TOLERANCES[precision])


@pytest.mark.parametrize("backend", ["pad", "scan"])
def test_the_other_backends_equal_the_reference(cell, backend):
    module = make(cell, 64, backend).cuda()
    assert_within(module, batch(module, resets("random", 37, 21)), 2e-5)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("cell", ["mingru", "rtu", "ffm"])
def test_the_kernels_of_linear_cells_equal_the_reference(cell, pattern):
    module, truth = make(cell, 100, precision="auto").cuda(), make(cell, 100, "reference").double().cuda()
    found, expected = (outputs_and_gradients(each, batch(each, resets(pattern, 37, 21))) for each in (module, truth))
    assert max(relative_errors(found, expected).values()) < 2e-5


@pytest.mark.parametrize("hidden", [64, 256])
def test_a_captured_layer_follows_new_data(cell, hidden):
    module = make(cell, hidden).cuda().requires_grad_(False)
    data = batch(module, resets("random", 16, 12)).cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sequence(module, data)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = sequence(module, data)["y"]
    data["x"].normal_()
    data["is_init"].bernoulli_(0.5)
    graph.replay()
    torch.testing.assert_close(captured, sequence(module, data)["y"])


def test_a_non_default_stream_gives_the_same_result():
    module = make("gru", 64).cuda()
    data = batch(module, resets("random", 16, 12))
    expected = outputs_and_gradients(module, data)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = outputs_and_gradients(module, data)
    stream.synchronize()
    torch.testing.assert_close(found, expected)


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="one device only")
def test_a_second_device_gives_the_same_result():
    module = make("lstm", 64)
    data = batch(module, resets("random", 16, 12))
    expected = outputs_and_gradients(module.to("cuda:0"), data)
    found = outputs_and_gradients(module.to("cuda:1"), data)
    torch.testing.assert_close(found, expected, check_device=False)


def test_offsets_beyond_32_bits_are_correct():
    module = make("gru", 128, precision="bf16").cuda()
    rows, steps = 40_000, 128
    assert rows * steps * 4 * 128 > 2**31
    entries = {key: torch.zeros(rows, steps, 1, 128, device="cuda") for key in module.state_keys}
    entries["is_init"] = torch.rand(rows, steps, 1, device="cuda") < 0.01
    data = TensorDict({**entries, "x": torch.randn(rows, steps, 4, device="cuda")}, [rows, steps])
    whole, last = (sequence(module, rows)["y"] for rows in (data, data[-64:]))
    torch.testing.assert_close(whole[-64:], last)
    whole.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in module.parameters())
