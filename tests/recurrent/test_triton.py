"""The triton kernels, through triton's interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from recurrl.recurrent import RecurrentModule, backends, set_recurrent_mode
from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends import triton as backend
from recurrl.recurrent.backends.triton import launches, maths, recurrence, table
from recurrl.recurrent.cells import load_cell
from recurrl.recurrent.segments import Segments

CELLS = ("gru", "lstm")
PATTERNS = ("none", "first", "every step", "last", "random")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _memory_is_poisoned() -> Iterator[None]:
    """New memory holds NaN: an element that no thread writes shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def one_launch_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """No weights stay on the chip, however small."""
    monkeypatch.setattr(table, "configuration", table.step_configuration)


def make(cell: str, hidden: int, backend: str = "triton", precision: str = "ieee", **options: Any) -> RecurrentModule:
    torch.manual_seed(0)
    return RecurrentModule(
        cell,
        4,
        hidden,
        in_key="x",
        out_key="y",
        recurrent_backend=backend,
        recurrent_matmul_precision=precision if backend == "triton" else "auto",
        **options,
    )


def batch(module: RecurrentModule, rows: int, steps: int, pattern: str) -> TensorDict:
    generator = torch.Generator().manual_seed(1)
    marks = torch.zeros(rows, steps, 1, dtype=torch.bool)
    if pattern == "first":
        marks[:, 0] = True
    elif pattern == "every step":
        marks[:] = True
    elif pattern == "last":
        marks[:, -1] = True
    elif pattern == "random":
        marks = torch.rand(rows, steps, 1, generator=generator) < 0.3
    data = TensorDict({"x": torch.randn(rows, steps, 4, generator=generator), "is_init": marks}, [rows, steps])
    for key, spec in module.make_tensordict_primer().primers.items():
        data[key] = torch.randn(rows, steps, *spec.shape, generator=generator)
    return data


def everything(
    module: torch.nn.Module, data: TensorDict, state_keys: list[Any], autocast: bool = False
) -> dict[str, Tensor]:
    """Outputs, returned states and all gradients, in the dtype of the module."""
    dtype = next(module.parameters()).dtype
    inputs = {key: data[key].to(dtype).requires_grad_() for key in ("x", *state_keys)}
    with set_recurrent_mode(True), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = module(data.copy().update(inputs))
    found = {"y": result["y"], **{f"next {key}": result["next", key] for key in state_keys}}
    generator = torch.Generator().manual_seed(2)
    loss = sum((value * torch.randn(value.shape, generator=generator).to(dtype)).sum() for value in found.values())
    wanted = inputs | {name.rpartition(".")[2]: parameter for name, parameter in module.named_parameters()}
    gradients = torch.autograd.grad(loss, list(wanted.values()))
    return found | {f"gradient of {name}": value for name, value in zip(wanted, gradients, strict=True)}


def errors(module: RecurrentModule, data: TensorDict) -> dict[str, float]:
    """Of everything, relative to the reference in float64: the norm of the difference over that of the truth."""
    layers = module.layers
    truth = make(
        module.cell_name,
        layers.hidden_size,
        "reference",
        num_layers=layers.num_layers,
        bias=layers.bias,
        bidirectional=layers.bidirectional,
    ).double()
    truth.load_state_dict(module.state_dict())
    expected = everything(truth, data, module.state_keys)
    found = everything(module, data, module.state_keys)
    assert found.keys() == expected.keys()
    return {
        name: float((found[name].double() - value).norm() / value.norm().clamp(min=1e-30))
        for name, value in expected.items()
    }


def assert_within(module: RecurrentModule, data: TensorDict, tolerance: float) -> None:
    for name, error in errors(module, data).items():
        assert error < tolerance, f"{name}: {error:.1e}"


WAYS = {
    "none": {},
    "full": {"recurrent_recompute": "full"},
    "chunk": {"recurrent_recompute": "chunk", "recurrent_chunk_len": 3},
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("cell", CELLS)
def test_kernels_equal_the_reference(cell: str, pattern: str) -> None:
    assert_within(make(cell, 17), batch(make(cell, 17), 5, 7, pattern), 2e-5)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("cell", CELLS)
def test_kernels_of_one_step_equal_the_reference(cell: str, pattern: str, one_launch_a_step: None) -> None:
    assert_within(make(cell, 17), batch(make(cell, 17), 5, 4, pattern), 2e-5)


@pytest.mark.parametrize("recompute", ["full", "chunk"])
@pytest.mark.parametrize("cell", CELLS)
def test_gates_computed_again_give_the_same_gradients(cell: str, recompute: str) -> None:
    module = make(cell, 17, **WAYS[recompute])
    assert_within(module, batch(module, 5, 7, "random"), 2e-5)


@pytest.mark.parametrize("recompute", ["full", "chunk"])
@pytest.mark.parametrize("cell", CELLS)
def test_gates_computed_again_give_the_same_gradients_step_by_step(
    cell: str, recompute: str, one_launch_a_step: None
) -> None:
    module = make(cell, 17, **WAYS[recompute])
    assert_within(module, batch(module, 5, 5, "random"), 2e-5)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), rows=st.integers(1, 6), steps=st.integers(1, 5), chunk_len=st.integers(1, 6))
def test_any_resets_in_chunks_of_any_length(
    data: st.DataObject, rows: int, steps: int, chunk_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make(data.draw(st.sampled_from(CELLS)), 3, recurrent_recompute="chunk", recurrent_chunk_len=chunk_len)
    inputs = batch(module, rows, steps, "none")
    marks = data.draw(st.lists(st.booleans(), min_size=rows * steps, max_size=rows * steps))
    inputs["is_init"] = torch.tensor(marks).reshape(rows, steps, 1)
    with monkeypatch.context() as patch:
        if data.draw(st.booleans(), "one launch a step"):
            patch.setattr(table, "configuration", table.step_configuration)
        if data.draw(st.booleans(), "rows for lanes"):
            patch.setattr(backend, "_data_is_out_of_reach", lambda _: True)
        assert_within(module, inputs, 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("recompute", WAYS)
@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
@pytest.mark.parametrize("hidden", [1, 17, 24, 50, 64])
@pytest.mark.parametrize("cell", CELLS)
def test_resident_kernels_equal_the_reference_in_all_combinations(
    cell: str, hidden: int, precision: str, recompute: str, pattern: str
) -> None:
    assert table.configuration(cell, hidden, precision, 90, 5).resident
    module = make(cell, hidden, precision=precision, **WAYS[recompute])
    assert_within(module, batch(module, 5, 7, pattern), 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", WAYS)
@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
@pytest.mark.parametrize("hidden", [96, 128, 200, 256, 512])
@pytest.mark.parametrize("cell", CELLS)
def test_large_sizes_equal_the_reference(cell: str, hidden: int, precision: str, recompute: str) -> None:
    assert not table.configuration(cell, hidden, precision, 90, 3).resident
    module = make(cell, hidden, precision=precision, **WAYS[recompute])
    assert_within(module, batch(module, 3, 4, "random"), 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [96, 128])
@pytest.mark.parametrize("cell", CELLS)
def test_resident_kernels_equal_the_reference_in_the_largest_sizes(cell: str, hidden: int) -> None:
    with table.forced(table.Configuration(True, 16, 128, 128, warps=8, stages=1)):
        assert_within(make(cell, hidden), batch(make(cell, hidden), 5, 7, "random"), 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_the_largest_size_equals_the_reference(cell: str) -> None:
    module = make(cell, table.LARGEST_HIDDEN, precision="tf32x3")
    assert_within(module, batch(module, 2, 2, "random"), 2e-5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (4, 1), (33, 3)], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_any_number_of_rows_and_steps(cell: str, shape: tuple[int, int]) -> None:
    assert_within(make(cell, 6), batch(make(cell, 6), *shape, "random"), 2e-5)


@pytest.mark.parametrize("options", [{"num_layers": 2}, {"bias": False}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_layers_directions_and_no_bias(cell: str, options: dict[str, Any]) -> None:
    assert_within(make(cell, 6, **options), batch(make(cell, 6, **options), 5, 7, "random"), 2e-5)


@pytest.mark.parametrize("recompute", ["none", "chunk"])
@pytest.mark.parametrize("cell", CELLS)
def test_layers_directions_and_no_bias_step_by_step(cell: str, recompute: str, one_launch_a_step: None) -> None:
    module = make(cell, 6, num_layers=2, bias=False, bidirectional=True, **WAYS[recompute])
    assert_within(module, batch(module, 3, 4, "random"), 2e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_dropout_between_layers_is_that_of_other_backends(cell: str) -> None:
    found = []
    for name in ("triton", "scan"):
        module = make(cell, 6, name, num_layers=2, dropout=0.5).train()
        data = batch(module, 5, 7, "random")
        torch.manual_seed(3)
        found.append(everything(module, data, module.state_keys))
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-4, atol=1e-5)


# tf32 has 11 bits of precision and bf16 8: a factor is wrong by 2⁻¹² or 2⁻⁹ at most, and gradients are products of
# several, through 7 steps. The interpreter computes tf32x3 in full float32.
@pytest.mark.parametrize(
    ("precision", "least", "most"), [("tf32x3", 0, 2e-5), ("tf32", 2e-5, 2e-3), ("bf16", 1e-4, 2e-2)]
)
@pytest.mark.parametrize("recompute", ["none", "chunk"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_precision_rounds_as_much_as_it_says(
    cell: str, recompute: str, precision: str, least: float, most: float
) -> None:
    module = make(cell, 24, precision=precision, **WAYS[recompute])
    found = errors(module, batch(module, 5, 7, "random"))
    assert least <= max(found.values()) < most, found


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("cell", CELLS)
def test_the_ways_to_compute_a_layer_round_the_same_factors(
    cell: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they differ by is the order of sums in float32, far less than a factor rounded otherwise."""
    data = batch(make(cell, 24), 3, 4, "random")
    found = []
    for configuration in (table.configuration, table.step_configuration):
        monkeypatch.setattr(table, "configuration", configuration)
        for way in WAYS.values():
            module = make(cell, 24, precision=precision, **way)
            found.append(everything(module, data, module.state_keys))
    for other in found[1:]:
        for name, value in found[0].items():
            error = (other[name] - value).norm() / value.norm()
            assert error < 2e-5, f"{name}: {error:.1e}"


@pytest.mark.parametrize("precision", ["tf32", "bf16 emulated", "ieee"])
def test_weights_are_rounded_before_the_launch_as_states_are_in_it(precision: str) -> None:
    @triton.jit
    def kernel(x, out, PRECISION: tl.constexpr):
        k = tl.arange(0, 256)
        tl.store(out + k, maths.rounded(tl.load(x + k), PRECISION))

    x = torch.randn(256, generator=torch.Generator().manual_seed(0))
    x[:2] = torch.tensor([float("nan"), -float("inf")])
    out = torch.empty(256)
    kernel[(1,)](x, out, PRECISION=precision)
    torch.testing.assert_close(recurrence.rounded(x, precision), out, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("precision", "bits"), [("tf32", 10), ("bf16 emulated", 7)])
def test_a_factor_is_rounded_to_the_nearest(precision: str, bits: int) -> None:
    @triton.jit
    def kernel(x, out, PRECISION: tl.constexpr):
        k = tl.arange(0, 256)
        tl.store(out + k, maths.rounded(tl.load(x + k), PRECISION))

    x = torch.randn(256, generator=torch.Generator().manual_seed(0))
    out = torch.empty(256)
    kernel[(1,)](x, out, PRECISION=precision)
    mantissa, exponent = torch.frexp(x.double())
    assert torch.equal(out.double(), torch.ldexp((mantissa * 2 ** (bits + 1)).round() / 2 ** (bits + 1), exponent))


@pytest.mark.parametrize("precision", ["tf32", "bf16 emulated"])
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, -1], ids=["torch's", "a GPU's", "a negative one"])
def test_a_factor_that_is_no_number_stays_one(precision: str, bits: int) -> None:
    @triton.jit
    def kernel(x, out, PRECISION: tl.constexpr):
        k = tl.arange(0, 16)
        tl.store(out + k, maths.rounded(tl.load(x + k), PRECISION))

    x, out = torch.full((16,), bits, dtype=torch.int32).view(torch.float32), torch.zeros(16)
    kernel[(1,)](x, out, PRECISION=precision)
    assert out.isnan().all()


@pytest.mark.parametrize("cell", CELLS)
def test_a_loss_of_the_output_alone_has_its_gradients(cell: str) -> None:
    module, truth = make(cell, 6), make(cell, 6, "scan")
    data = batch(module, 5, 7, "random")
    for each in (module, truth):
        with set_recurrent_mode(True):
            each(data.clone())["y"].square().sum().backward()
    for found, expected in zip(module.parameters(), truth.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-5)


def test_a_dtype_of_the_product_is_its_precision() -> None:
    module = make("gru", 6, precision="ieee", recurrent_compute_dtype=torch.bfloat16)
    rounded = make("gru", 6, precision="bf16")
    data = batch(module, 5, 7, "random")
    found, expected = (everything(m, data, m.state_keys) for m in (module, rounded))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("cell", CELLS)
def test_without_gradients_no_gates_are_kept(cell: str, kept_gates: list[int]) -> None:
    module = make(cell, 6)
    data = batch(module, 5, 7, "random")
    with set_recurrent_mode(True):
        expected = module(data.clone())["y"]
        with torch.no_grad():
            found = module(data.clone())["y"]
    assert kept_gates == [35, 0]
    assert torch.equal(found, expected)


@pytest.fixture
def kept_gates(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each layer that runs forwards, the number of steps whose gates it writes."""
    steps: list[int] = []
    forward = recurrence.Recurrence.forward

    def watched(self: Any, x_gates: Tensor, states: list[Tensor], gates: Tensor) -> None:
        steps.append(len(gates))
        forward(self, x_gates, states, gates)

    monkeypatch.setattr(recurrence.Recurrence, "forward", watched)
    return steps


@pytest.mark.parametrize("cell", CELLS)
def test_recomputation_keeps_the_states_and_no_gates(cell: str) -> None:
    rows, steps, hidden = 2, 16, 16
    kept = {}
    for recompute, way in WAYS.items():
        module = make(cell, hidden, **way)
        data = batch(module, rows, steps, "none")
        sizes: list[int] = []
        keep = torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t)
        with set_recurrent_mode(True), keep:
            module(data)
        kept[recompute] = sum(sizes)
    assert kept["none"] - kept["full"] == 4 * rows * steps * hidden
    assert kept["chunk"] == kept["full"]


@pytest.mark.parametrize("cell", CELLS)
def test_scratch_memory_of_chunks_is_that_of_a_chunk(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch: dict[str, list[int]] = {}
    run = recurrence.BackwardSweep.run
    for recompute, way in WAYS.items():
        sizes = scratch[recompute] = []

        def watched(self: Any, window: Any, gates: Tensor, sizes: list[int] = sizes) -> Any:
            found = run(self, window, gates)
            sizes.append(sum(value.numel() for value in (gates, *found[:2])))
            return found

        monkeypatch.setattr(recurrence.BackwardSweep, "run", watched)
        module = make(cell, 16, **way)
        with set_recurrent_mode(True):
            module(batch(module, 4, 12, "none"))["y"].sum().backward()
    assert scratch["full"] == scratch["none"] == [4 * 12 * 16 * 9]
    assert scratch["chunk"] == [4 * 3 * 16 * 9] * 4


class NoLookAtTheData(TorchDispatchMode):
    """What a CUDA graph cannot capture: operations whose result the host, or the shape of a tensor, depends on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        assert "_local_scalar_dense" not in name
        assert "nonzero" not in name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("recompute", ["none", "chunk"])
@pytest.mark.parametrize("choose", ["configuration", "step_configuration"], ids=["resident", "step by step"])
@pytest.mark.parametrize("cell", CELLS)
def test_nothing_looks_at_the_data_while_a_graph_is_captured(
    cell: str, choose: str, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes are rows then, with starts in their middle."""
    monkeypatch.setattr(table, "configuration", getattr(table, choose))
    module = make(cell, 6, bidirectional=True, **WAYS[recompute])
    data = batch(module, 3, 5, "random")
    expected = everything(module, data, module.state_keys)
    monkeypatch.setattr(backend, "_data_is_out_of_reach", lambda _: True)
    monkeypatch.delattr(Segments, "packing")
    with NoLookAtTheData():
        found = everything(module, data, module.state_keys)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_under_autocast_the_layer_computes_in_float32_forwards_and_backwards(cell: str) -> None:
    module = make(cell, 6)
    data = batch(module, 5, 7, "random")
    expected = everything(module, data, module.state_keys)
    found = everything(module, data, module.state_keys, autocast=True)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def operands(cell: str, keep: bool, window_steps: int) -> tuple[Any, ...]:
    """Arguments of the operator of the forward pass: lanes of 5, 4 and 3 steps."""
    torch.manual_seed(0)
    steps, inputs, hidden = 12, 4, 6
    gates, states = {"gru": 3, "lstm": 4}[cell], {"gru": 1, "lstm": 2}[cell]
    return (
        torch.randn(steps, inputs, requires_grad=True),
        torch.randn(gates * hidden, inputs, requires_grad=True),
        torch.randn(gates * hidden, hidden, requires_grad=True),
        torch.randn(4 * hidden, requires_grad=True),
        torch.tensor([1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0], dtype=torch.int8),
        [torch.randn(steps, hidden, requires_grad=True) for _ in range(states)],
        torch.tensor([3, 8, 0]),
        torch.tensor([5, 4, 3], dtype=torch.int32),
        [3, 3, 3, 2, 1],
        "ieee",
        keep,
        window_steps,
    )


@pytest.mark.parametrize(("keep", "window_steps"), [(True, 0), (False, 0), (False, 2)], ids=["none", "full", "chunk"])
@pytest.mark.parametrize("cell", CELLS)
def test_the_operators_are_registered_as_torch_wants_them(
    cell: str, keep: bool, window_steps: int, one_launch_a_step: None
) -> None:
    from recurrl.recurrent.backends.triton.ops import recurrent_backward, recurrent_forward

    torch.use_deterministic_algorithms(False)  # NaN does not equal itself
    arguments = operands(cell, keep, window_steps)
    assert set(torch.library.opcheck(recurrent_forward, arguments).values()) == {"SUCCESS"}
    *inputs, _, _ = [
        [each.detach() for each in value] if isinstance(value, list) and isinstance(value[0], Tensor) else value
        for value in (value.detach() if isinstance(value, Tensor) else value for value in arguments)
    ]
    *states, gates = recurrent_forward(*inputs, keep, window_steps)
    backward = ([torch.randn_like(h) for h in states], *inputs, window_steps, states, gates, True, True)
    assert set(torch.library.opcheck(recurrent_backward, backward).values()) == {"SUCCESS"}


@pytest.mark.parametrize("cell", CELLS)
def test_the_compiler_takes_a_module_whole(cell: str) -> None:
    module = make(cell, 6, precision="auto")
    data = batch(module, 5, 7, "random")
    expected = everything(module, data, module.state_keys)
    found = everything(torch.compile(module, fullgraph=True, backend="aot_eager"), data, module.state_keys)
    names = {name: name.replace("_orig_mod.", "") for name in found}
    for name, value in found.items():
        torch.testing.assert_close(value, expected[names[name]], rtol=1e-4, atol=1e-5)


def test_a_second_derivative_is_refused() -> None:
    module = make("gru", 6)
    data = batch(module, 2, 3, "none")
    data["x"].requires_grad_()
    with set_recurrent_mode(True):
        output = module(data)["y"].sum()
    with pytest.raises(RuntimeError, match="Choose backend=reference"):
        torch.autograd.grad(output, [data["x"]], create_graph=True)


def test_another_dtype_is_refused() -> None:
    module = make("gru", 6).double()
    with set_recurrent_mode(True), pytest.raises(ValueError, match=r"computes in float32, .* torch\.float64"):
        module(batch(module, 2, 3, "none").double())


@pytest.mark.parametrize(
    ("cell", "options", "sentence"),
    [
        ("mingru", {}, "has no kernel for cell=mingru"),
        ("lstm", {"proj_size": 4}, "proj_size=4 is not possible"),
        ("gru", {"recompute": "chunk"}, "chunk_len=0. Give 1 or more"),
        ("gru", {"hidden_size": 1025}, "hidden_size=1025 is not possible .* tested up to 1024"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused(cell: str, options: dict[str, Any], sentence: str) -> None:
    reason = backends.refusal("triton", load_cell(cell), Options(**options), CPU)
    assert reason is not None
    assert pytest.RaisesExc(ValueError, match=sentence).matches(ValueError(reason))


def test_without_a_gpu_and_the_interpreter_the_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    reason = backends.refusal("triton", load_cell("gru"), Options(), CPU)
    assert str(reason).startswith("backend=triton needs a CUDA device, and this is device=cpu. Choose backend=auto")


@pytest.mark.parametrize(("capability", "runs"), [((7, 5), False), ((8, 0), True), ((8, 9), True), ((9, 0), True)])
def test_an_old_gpu_is_refused(capability: tuple[int, int], runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    reason = backends.refusal("triton", load_cell("gru"), Options(hidden_size=512), torch.device("cuda"))
    assert (reason is None) is runs
    assert runs or "needs compute capability 8.0 or above" in str(reason)


@pytest.mark.parametrize(
    ("cell", "hidden", "precision", "architecture", "resident"),
    [
        ("gru", 128, "tf32", 90, True),
        ("gru", 128, "tf32", 80, False),
        ("gru", 128, "bf16", 80, True),
        ("gru", 128, "ieee", 90, False),
        ("lstm", 128, "tf32", 90, False),
        ("gru", 129, "bf16", 100, False),
    ],
)
def test_weights_stay_on_the_chip_where_they_fit(
    cell: str, hidden: int, precision: str, architecture: int, resident: bool
) -> None:
    assert table.configuration(cell, hidden, precision, architecture, 64).resident is resident


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("cell", CELLS)
def test_every_launch_of_the_table_says_all_that_the_compiler_asks(cell: str, direction: str) -> None:
    for precision, architecture, hidden in product(table.PRECISIONS, table.ARCHITECTURES, [1, 64, 128, 1000]):
        found = launches.all_launches(cell, hidden, precision, architecture, direction)
        assert found
        for launch in found:
            annotations = launch.kernel.fn.__annotations__
            assert set(launch.constants) == set(annotations)
            assert set(annotations.values()) == {"tl.constexpr"}
            assert set(launch.aligned) <= set(launch.signature) - set(annotations)
