"""Every backend computes what the reference computes: outputs, states and all gradients, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor
from torchrl.modules import GRUModule as TorchRLGRU
from torchrl.modules import LSTMModule as TorchRLLSTM

from recurrl.recurrent import RecurrentModule, set_recurrent_mode

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


def resets(pattern: str, rows: int, steps: int) -> Tensor:
    marks = torch.zeros(rows, steps, dtype=torch.bool)
    if pattern == "first":
        marks[:, 0] = True
    elif pattern == "every step":
        marks[:] = True
    elif pattern == "last":
        marks[:, -1] = True
    elif pattern == "random":
        marks = torch.rand(rows, steps, generator=torch.Generator().manual_seed(3)) < 0.3
    elif pattern == "one row only":
        marks[0, steps // 2] = True
    return marks


PATTERNS = ("none", "first", "every step", "last", "random", "one row only")


def make(cell: str, backend: str, recompute: str, size: tuple[int, ...], layers: int, bias: bool) -> RecurrentModule:
    torch.manual_seed(0)
    return RecurrentModule(
        cell,
        size[2],
        size[3],
        layers,
        bias=bias,
        recurrent_backend=backend,
        recurrent_recompute=recompute,
        in_key="x",
        out_key="y",
    ).double()


def batch(module: RecurrentModule, size: tuple[int, ...], is_init: Tensor, layers: int) -> TensorDict:
    rows, steps, inputs, hidden = size
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    states = {key: random(rows, steps, layers, hidden) for key in module.in_keys[1:-1]}
    return TensorDict({"x": random(rows, steps, inputs), "is_init": is_init, **states}, [rows, steps])


def outputs_and_gradients(module: torch.nn.Module, data: TensorDict) -> dict[str, Tensor]:
    """Everything that two implementations must agree on."""
    state_keys = list(module.in_keys[1:-1])
    inputs = {"x": data["x"], **{key: data[key] for key in state_keys}}
    with set_recurrent_mode(True):
        result = module(data.copy())
    found = {"y": result["y"], **{f"next {key}": result["next", key] for key in state_keys}}
    generator = torch.Generator().manual_seed(2)
    loss = sum(
        (value * torch.randn(value.shape, dtype=value.dtype, generator=generator)).sum() for value in found.values()
    )
    wanted = inputs | {name.rpartition(".")[2]: parameter for name, parameter in module.named_parameters()}
    gradients = torch.autograd.grad(loss, list(wanted.values()))
    return found | {f"gradient of {name}": value for name, value in zip(wanted, gradients, strict=True)}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


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
    expected = outputs_and_gradients(reference, batch(reference, size, is_init, 1))
    assert_equal(outputs_and_gradients(module, batch(module, size, is_init, 1)), expected)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("backend", "recompute"), FAST_BACKENDS)
@pytest.mark.parametrize("cell", CELLS)
def test_stacked_layers_equal_the_reference(cell: str, backend: str, recompute: str, bias: bool) -> None:
    size = SIZES["ordinary"]
    is_init = resets("random", *size[:2])
    reference = make(cell, "reference", "none", size, layers=3, bias=bias)
    module = make(cell, backend, recompute, size, layers=3, bias=bias)
    expected = outputs_and_gradients(reference, batch(reference, size, is_init, 3))
    assert_equal(outputs_and_gradients(module, batch(module, size, is_init, 3)), expected)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("backend", ["reference", "pad", "scan"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_backend_equals_torchrl(cell: str, backend: str, pattern: str) -> None:
    size, layers = SIZES["ordinary"], 2
    is_init = resets(pattern, *size[:2])
    module = make(cell, backend, "none", size, layers, bias=True)
    theirs = {"gru": TorchRLGRU, "lstm": TorchRLLSTM}[cell](size[2], size[3], layers, in_key="x", out_key="y").double()
    theirs.load_state_dict(module.state_dict())
    expected = outputs_and_gradients(theirs, batch(module, size, is_init.unsqueeze(-1), layers))
    assert_equal(outputs_and_gradients(module, batch(module, size, is_init.unsqueeze(-1), layers)), expected)


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
    marks = data.draw(st.lists(st.booleans(), min_size=rows * steps, max_size=rows * steps))
    is_init = torch.tensor(marks).reshape(rows, steps)
    size = (rows, steps, 2, 3)
    reference = make(cell, "reference", "none", size, layers=1, bias=True)
    module = make(cell, *backend, size, layers=1, bias=True)
    expected = outputs_and_gradients(reference, batch(reference, size, is_init, 1))
    assert_equal(outputs_and_gradients(module, batch(module, size, is_init, 1)), expected)


@pytest.mark.parametrize("cell", CELLS)
def test_the_hand_written_backward_is_the_derivative_of_its_forward(cell: str) -> None:
    size = (3, 6, 2, 3)
    module = make(cell, "scan", "none", size, layers=1, bias=True)
    data = batch(module, size, resets("random", *size[:2]), 1)
    keys = ["x", *module.in_keys[1:-1]]

    def run(*inputs: Tensor) -> Tensor:
        with set_recurrent_mode(True):
            return module(data.copy().update(dict(zip(keys, inputs, strict=True))))["y"]

    assert torch.autograd.gradcheck(run, [data[key] for key in keys])


@pytest.mark.parametrize("cell", CELLS)
def test_recomputing_keeps_fewer_tensors_for_the_backward_pass(cell: str) -> None:
    size = (8, 64, 4, 16)
    kept = {}
    for recompute in ("none", "full"):
        module = make(cell, "scan", recompute, size, layers=1, bias=True)
        data = batch(module, size, resets("none", *size[:2]), 1)
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            outputs_of = make_output(module, data)
        kept[recompute] = sum(sizes)
        outputs_of.sum().backward()
    assert kept["full"] < 0.5 * kept["none"]


def make_output(module: RecurrentModule, data: TensorDict) -> Tensor:
    with set_recurrent_mode(True):
        return module(data.copy())["y"]


@pytest.mark.parametrize("cell", CELLS)
def test_a_second_derivative_is_refused(cell: str) -> None:
    size = (2, 3, 2, 3)
    module = make(cell, "scan", "none", size, layers=1, bias=True)
    data = batch(module, size, resets("none", 2, 3), 1)
    with pytest.raises(RuntimeError, match="Choose backend=reference"):
        torch.autograd.grad(make_output(module, data).sum(), [data["x"]], create_graph=True)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_a_compiled_scan_equals_eager(cell: str) -> None:
    from recurrl.recurrent.backends.scan.traced import prepare as prepare_for_compile

    prepare_for_compile(torch.device("cpu"))
    size = (3, 6, 2, 4)
    module = make(cell, "scan", "none", size, layers=1, bias=True)
    is_init = resets("random", *size[:2])
    expected = outputs_and_gradients(module, batch(module, size, is_init, 1))
    compiled = torch.compile(module)
    compiled.in_keys = module.in_keys
    found = outputs_and_gradients(compiled, batch(module, size, is_init, 1))
    assert_equal(found, expected)
