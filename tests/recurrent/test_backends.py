"""Every backend matches the reference: outputs, states and all gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import PATTERNS, batch, outputs_and_gradients, relative_errors, resets
from tensordict import TensorDict
from torch import Tensor
from torchrl.modules import GRUModule as TorchRLGRU
from torchrl.modules import LSTMModule as TorchRLLSTM

from recurrl.recurrent import GRUModule, LSTMModule, RecurrentModule, set_recurrent_mode
from recurrl.recurrent.backends import RECOMPUTE

CELLS = ("gru", "lstm")
FAST_BACKENDS = (("pad", "none"), ("scan", "none"), ("scan", "full"))
SIZES = {  # B, T, I, H
    "ordinary": (5, 9, 4, 6),
    "one step": (4, 1, 3, 5),
    "one row": (1, 12, 3, 5),
    "one feature": (3, 7, 1, 1),
    "odd": (3, 11, 7, 17),
    "wide": (2, 6, 5, 96),
}


def make(
    cell: str, backend: str, recompute: str, size: tuple[int, ...], layers: int, bias: bool, **options: Any
) -> RecurrentModule:
    torch.manual_seed(0)
    return RecurrentModule(
        cell,
        size[2],
        size[3],
        layers,
        bias=bias,
        recurrent_backend=backend,
        recurrent_recompute=recompute,
        recurrent_chunk_len=3,
        in_key="x",
        out_key="y",
        **options,
    ).double()


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    """Compares elementwise, relative to the element or to a hundredth of the largest one."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name],
            value,
            rtol=tolerance,
            atol=0.01 * tolerance * float(value.abs().max()) + 1e-300,
            msg=lambda m, name=name: f"{name}: {m}",
        )


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize(("backend", "recompute"), FAST_BACKENDS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_backend_equals_the_reference(
    cell: str, backend: str, recompute: str, size: tuple[int, ...], pattern: str
) -> None:
    is_init = resets(pattern, *size[:2])
    reference = make(cell, "reference", "none", size, layers=1, bias=True)
    module = make(cell, backend, recompute, size, layers=1, bias=True)
    expected = outputs_and_gradients(reference, batch(reference, is_init))
    assert_equal(outputs_and_gradients(module, batch(module, is_init)), expected)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("backend", "recompute"), FAST_BACKENDS)
@pytest.mark.parametrize("cell", CELLS)
def test_stacked_layers_equal_the_reference(cell: str, backend: str, recompute: str, bias: bool) -> None:
    size = SIZES["ordinary"]
    is_init = resets("random", *size[:2])
    reference = make(cell, "reference", "none", size, layers=3, bias=bias)
    module = make(cell, backend, recompute, size, layers=3, bias=bias)
    expected = outputs_and_gradients(reference, batch(reference, is_init))
    assert_equal(outputs_and_gradients(module, batch(module, is_init)), expected)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("backend", ["reference", "pad", "scan"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_backend_equals_torchrl(cell: str, backend: str, pattern: str) -> None:
    size, layers = SIZES["ordinary"], 2
    is_init = resets(pattern, *size[:2])
    module = make(cell, backend, "none", size, layers, bias=True)
    theirs = {"gru": TorchRLGRU, "lstm": TorchRLLSTM}[cell](size[2], size[3], layers, in_key="x", out_key="y").double()
    theirs.load_state_dict(module.state_dict())
    expected = outputs_and_gradients(theirs, batch(module, is_init.unsqueeze(-1)))
    assert_equal(outputs_and_gradients(module, batch(module, is_init.unsqueeze(-1))), expected)


OPTIONS = {
    "both directions": {"bidirectional": True},
    "three layers in both directions": {"bidirectional": True, "num_layers": 3},
    "no bias": {"bias": False},
    "both directions without bias": {"bidirectional": True, "bias": False},
    "a projection": {"proj_size": 4},
    "a projection without bias in two layers": {"proj_size": 4, "bias": False, "num_layers": 2},
    "a projection in both directions and two layers": {"proj_size": 4, "bidirectional": True, "num_layers": 2},
    "plain Python": {"python_based": True, "num_layers": 2},
}


@pytest.mark.parametrize("pattern", ["none", "every step", "random"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize(("backend", "recompute"), [("reference", "none"), *FAST_BACKENDS])
@pytest.mark.parametrize("cell", CELLS)
def test_every_torchrl_option_matches_torchrl(
    cell: str, backend: str, recompute: str, options: dict[str, Any], pattern: str
) -> None:
    if cell == "gru" and "proj_size" in options:
        options = {name: value for name, value in options.items() if name != "proj_size"}
    size = SIZES["ordinary"]
    is_init = resets(pattern, *size[:2]).unsqueeze(-1)
    arguments: dict[str, Any] = {"num_layers": 1, "in_key": "x", "out_key": "y", **options}
    ours = {"gru": GRUModule, "lstm": LSTMModule}[cell](
        size[2], size[3], recurrent_backend=backend, recurrent_recompute=recompute, **arguments
    ).double()
    # TorchRL's Python modules are not bidirectional.
    theirs = {"gru": TorchRLGRU, "lstm": TorchRLLSTM}[cell](size[2], size[3], **arguments).double()
    theirs.load_state_dict(ours.state_dict())
    expected = outputs_and_gradients(theirs, batch(ours, is_init))
    assert_equal(outputs_and_gradients(ours, batch(ours, is_init)), expected)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize(("backend", "recompute"), FAST_BACKENDS)
@pytest.mark.parametrize("cell", CELLS)
def test_float32_is_accurate_to_five_digits(
    cell: str, backend: str, recompute: str, size: tuple[int, ...], pattern: str
) -> None:
    """Relative error norm against the reference in float64, from the same float32 numbers."""
    is_init = resets(pattern, *size[:2])
    module = make(cell, backend, recompute, size, layers=2, bias=True).float()
    reference = make(cell, "reference", "none", size, layers=2, bias=True)
    reference.load_state_dict(module.state_dict())
    data = batch(module, is_init)
    errors = relative_errors(outputs_and_gradients(module, data), outputs_and_gradients(reference, data))
    for name, error in errors.items():
        assert error < 1e-5, f"{name}: {error:.1e}"


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}], ids=["one direction", "both directions"])
@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_scan_runs_a_step_only_cell(step_only_cell: str, recompute: str, options: dict[str, Any], pattern: str) -> None:
    size = SIZES["ordinary"]
    is_init = resets(pattern, *size[:2])
    reference = make(step_only_cell, "reference", "none", size, 2, True, **options)
    module = make(step_only_cell, "scan", recompute, size, 2, True, **options)
    expected = outputs_and_gradients(reference, batch(reference, is_init))
    assert_equal(outputs_and_gradients(module, batch(module, is_init)), expected)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_a_parallel_form_equals_its_steps(size: tuple[int, ...], pattern: str) -> None:
    is_init = resets(pattern, *size[:2])
    reference = make("mingru", "reference", "none", size, layers=2, bias=True)
    module = make("mingru", "scan", "none", size, layers=2, bias=True)
    expected = outputs_and_gradients(reference, batch(reference, is_init))
    assert_equal(outputs_and_gradients(module, batch(module, is_init)), expected)


def test_unread_stored_states_may_hold_anything() -> None:
    for cell, backend in itertools.product((*CELLS, "mingru"), ("reference", "pad", "scan")):
        if (cell, backend) == ("mingru", "pad"):
            continue
        size = SIZES["ordinary"]
        module = make(cell, backend, "none", size, layers=1, bias=True)
        data = batch(module, resets("random", *size[:2]))
        read = data["is_init"].clone()
        read[:, 0] = True
        for key in module.state_keys:
            data[key] = data[key].masked_fill(~read[..., None, None], torch.nan)
        found = outputs_and_gradients(module, data)
        assert all(value.isfinite().all() for value in found.values()), (cell, backend)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    rows=st.integers(1, 5),
    steps=st.integers(1, 12),
    cell=st.sampled_from(CELLS),
    backend=st.sampled_from(FAST_BACKENDS),
)
def test_any_pattern_of_resets_equals_the_reference(
    data: st.DataObject, rows: int, steps: int, cell: str, backend: tuple[str, str]
) -> None:
    flags = data.draw(st.lists(st.booleans(), min_size=rows * steps, max_size=rows * steps))
    is_init = torch.tensor(flags).reshape(rows, steps)
    size = (rows, steps, 2, 3)
    reference = make(cell, "reference", "none", size, layers=1, bias=True)
    module = make(cell, *backend, size, layers=1, bias=True)
    expected = outputs_and_gradients(reference, batch(reference, is_init))
    assert_equal(outputs_and_gradients(module, batch(module, is_init)), expected)


@pytest.mark.parametrize("cell", CELLS)
def test_the_hand_written_backward_is_the_derivative_of_its_forward(cell: str) -> None:
    size = (3, 6, 2, 3)
    module = make(cell, "scan", "none", size, layers=1, bias=True)
    data = batch(module, resets("random", *size[:2]))
    keys = ["x", *module.in_keys[1:-1]]

    def run(*inputs: Tensor) -> Tensor:
        with set_recurrent_mode(True):
            return module(data.copy().update(dict(zip(keys, inputs, strict=True))))["y"]

    assert torch.autograd.gradcheck(run, [data[key].requires_grad_() for key in keys])


@pytest.mark.parametrize("cell", CELLS)
def test_recomputing_keeps_fewer_tensors_for_the_backward_pass(cell: str) -> None:
    size = (8, 64, 4, 16)
    kept = {}
    for recompute in RECOMPUTE:
        module = make(cell, "scan", recompute, size, layers=1, bias=True)
        data = batch(module, resets("none", *size[:2]))
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            outputs_of = make_output(module, data)
        kept[recompute] = sum(sizes)
        outputs_of.sum().backward()
    assert kept["full"] < 0.5 * kept["none"]
    assert kept["chunk"] < 0.5 * kept["none"]


def make_output(module: RecurrentModule, data: TensorDict) -> Tensor:
    with set_recurrent_mode(True):
        return module(data.copy())["y"]


@pytest.mark.parametrize("cell", CELLS)
def test_a_second_derivative_is_refused(cell: str) -> None:
    size = (2, 3, 2, 3)
    module = make(cell, "scan", "none", size, layers=1, bias=True)
    data = batch(module, resets("none", 2, 3))
    data["x"].requires_grad_()
    with pytest.raises(RuntimeError, match="Choose backend=reference"):
        torch.autograd.grad(make_output(module, data).sum(), [data["x"]], create_graph=True)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [*CELLS, "mingru"])
def test_a_compiled_module_equals_eager(cell: str) -> None:
    size = (3, 6, 2, 4)
    module = make(cell, "scan", "none", size, layers=2, bias=True)
    is_init = resets("random", *size[:2])
    expected = outputs_and_gradients(module, batch(module, is_init))
    compiled = torch.compile(module, fullgraph=True)
    assert_equal(outputs_and_gradients(compiled, batch(module, is_init)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_a_compiled_module_runs_without_gradients(cell: str) -> None:
    size = (3, 6, 2, 4)
    module = make(cell, "scan", "none", size, layers=1, bias=True)
    data = batch(module, resets("random", *size[:2]))
    with set_recurrent_mode(True), torch.no_grad():
        expected = module(data.clone())
        found = torch.compile(module, fullgraph=True)(data.clone())
    for key in ("y", *(("next", key) for key in module.state_keys)):
        torch.testing.assert_close(found[key], expected[key], rtol=1e-10, atol=1e-12)


def test_a_compiled_scan_of_a_cell_without_a_derivative_is_refused(step_only_cell: str) -> None:
    module = make(step_only_cell, "scan", "none", (2, 3, 2, 3), layers=1, bias=True)
    compiled = torch.compile(module, fullgraph=True)
    with set_recurrent_mode(True), pytest.raises(Exception, match="Choose backend=reference"):
        compiled(batch(module, resets("none", 2, 3)))
