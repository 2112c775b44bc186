"""Every backend matches the reference: outputs, states and all gradients."""

from copy import deepcopy
from functools import cache, partial
from itertools import product
from unittest import mock

import pytest
import torch
from found import CELLS, RUNS, layers_of
from hoptorch.scan import ensure_scan_backward
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import PATTERNS, batch, neighbouring, numbers_kept, outputs_and_gradients, relative_errors, resets, sequence
from slow_cases import slow

from recurrl.recurrent import LSTMModule
from recurrl.recurrent.cell import ParallelCell
from recurrl.recurrent.choice import BACKENDS
from recurrl.recurrent.gated import AnalyticCell
from recurrl.recurrent.linear import LinearCell
from recurrl.recurrent.matrix import MatrixCell
from recurrl.recurrent.segments import expanded

TORCH_CELLS = ("gru", "lstm")  # of which TorchRL has modules
WITH_DERIVATIVE = [name for name, make in CELLS.items() if isinstance(make(1), AnalyticCell | ParallelCell)]
SIZES = {  # B, T, I, H
    "ordinary": (5, 9, 4, 6),
    "one step": (4, 1, 3, 5),
    "one row": (1, 12, 3, 5),
    "one feature": (3, 7, 1, 1),
    "odd": (3, 11, 7, 17),
    "wide": (2, 6, 5, 96),
}


COSTLY = [run for run in RUNS if run[1] == "triton" and run[0] != "mingru"]
"""Linear cells share triton's kernels, for which the interpreter takes seconds: one cell has all fast tests of them."""
AFFORDABLE = [slow(*run) if run in COSTLY else run for run in RUNS]


def grid(runs):
    """Each run at each size with each pattern of resets.

    Slow are the combinations of an unusual size and an unusual pattern, except for the cells that all backends have
    kernels for: the others share their loops and scans.
    """
    for run in runs:
        for name, size in SIZES.items():
            for pattern in PATTERNS:
                is_fast = run[0] in TORCH_CELLS or name == "ordinary" or pattern == "random"
                if "triton" in run:
                    is_fast = pattern == "random" and (name == "ordinary" or run[0] == "mingru")
                marks = [] if is_fast else [pytest.mark.slow]
                yield pytest.param(*run, size, pattern, id="-".join((*run, name, pattern)), marks=marks)


def assert_equal(results, expected, tolerance=1e-10):
    """Compares elementwise, relative to the element or to a hundredth of the largest one."""
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        atol = 0.01 * tolerance * float(value.abs().max()) + 1e-300
        torch.testing.assert_close(results[name], value, rtol=tolerance, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("cell", "backend", "recompute", "size", "pattern"), list(grid(RUNS)))
def test_a_backend_equals_the_reference(cell, backend, recompute, size, pattern):
    assert_equals_the_reference(cell, backend, recompute, size, resets(pattern, *size[:2]))


def assert_equals_the_reference(cell, backend, recompute, size, is_init, **options):
    module = layers_of(cell, backend, recompute, size, **options)
    expected = by_the_reference(cell, size, tuple(map(tuple, is_init.tolist())), **options)
    assert_equal(outputs_and_gradients(module, batch(module, is_init)), expected)


@cache
def by_the_reference(cell, size, is_init, **options):
    module = layers_of(cell, "reference", "none", size, **options)
    results = outputs_and_gradients(module, batch(module, torch.tensor(is_init)))
    return {name: value.detach() for name, value in results.items()}


@pytest.mark.parametrize(("cell", "backend", "recompute"), AFFORDABLE)
def test_stacked_layers_equal_the_reference(cell, backend, recompute):
    size, options = SIZES["ordinary"], {"num_layers": 2, "bidirectional": True}
    assert_equals_the_reference(cell, backend, recompute, size, resets("random", *size[:2]), **options)


@pytest.mark.parametrize("backend", ["native", "pad", "scan", "triton"])
@pytest.mark.parametrize("cell", TORCH_CELLS)
def test_small_states_keep_their_digits(cell, backend):
    """A policy that normalises such features multiplies their rounding errors."""
    size = SIZES["ordinary"]
    module, reference = layers_of(cell, backend, "none", size).float(), layers_of(cell, "reference", "none", size)
    with torch.no_grad():
        for name, parameter in module.layers.named_parameters():
            parameter.mul_("bias" not in name)
    reference.load_state_dict(module.state_dict())
    data = batch(module, resets("random", *size[:2]))
    data.update({key: 1e-3 * value for key, value in data.items() if key != "is_init"})
    with torch.no_grad():
        results, expected = sequence(module, data), sequence(reference, data.double())
    keys = ["y", *module.out_keys[1:]]
    errors = relative_errors({key: results[key] for key in keys}, {key: expected[key] for key in keys})
    assert max(errors.values()) < 1e-6


IN_FLOAT32 = list(grid(run[:2] for run in RUNS if run[0] in WITH_DERIVATIVE and run[2] == "none"))


@pytest.mark.parametrize(("cell", "backend", "size", "pattern"), IN_FLOAT32)
def test_float32_is_accurate_to_five_digits(cell, backend, size, pattern):
    """Relative error norm against the reference in float64, from the same float32 numbers.

    Less accurate may only be what the float32 numbers themselves do not determine: a sum that nearly cancels, as a
    gradient may in a layer of one feature. Then the reference moves as much if the numbers move by their last place.
    """
    is_init = resets(pattern, *size[:2])
    module = layers_of(cell, backend, "none", size, num_layers=2).float()
    reference = layers_of(cell, "reference", "none", size, num_layers=2)
    reference.load_state_dict(module.state_dict())
    data = batch(module, is_init)
    expected = outputs_and_gradients(reference, data)
    errors = relative_errors(outputs_and_gradients(module, data), expected)
    if max(errors.values()) < 1e-5:
        return
    moved = movements(reference, data, expected)
    for name, error in errors.items():
        assert error < max(1e-5, moved[name]), f"{name}: {error:.1e}, and {moved[name]:.1e} by the last place"


def movements(reference, data, expected):
    """The most that each result moved, relatively, in 16 draws of neighbouring numbers throughout."""
    generator = torch.Generator().manual_seed(0)
    moved = dict.fromkeys(expected, 0.0)
    for _ in range(16):
        neighbour = deepcopy(reference)
        with torch.no_grad():
            for parameter in neighbour.parameters():
                parameter.copy_(neighbouring(parameter, generator))
        neighbours = data.apply(lambda value: neighbouring(value, generator))
        changes = relative_errors(outputs_and_gradients(neighbour, neighbours, generator), expected)
        moved = {name: max(changes[name], moved[name]) for name in moved}
    return moved


@pytest.mark.parametrize(("cell", "backend", "recompute"), AFFORDABLE)
def test_unread_stored_states_may_hold_anything(cell, backend, recompute):
    size = SIZES["ordinary"]
    module = layers_of(cell, backend, recompute, size)
    data = batch(module, resets("random", *size[:2]))
    read = data["is_init"].clone()
    read[:, 0] = True
    for key in module.state_keys:
        data[key] = torch.where(expanded(read, data[key]), data[key], torch.nan)
    assert all(value.isfinite().all() for value in outputs_and_gradients(module, data).values())


@settings(max_examples=120, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 12), st.sampled_from(sorted({*RUNS} - {*COSTLY})))
def test_any_pattern_of_resets_equals_the_reference(data, rows, steps, run):
    flags = data.draw(st.lists(st.booleans(), min_size=rows * steps, max_size=rows * steps))
    assert_equals_the_reference(*run, (rows, steps, 2, 3), torch.tensor(flags).reshape(rows, steps))


@pytest.mark.parametrize("cell", CELLS)
def test_the_reference_has_the_derivative_of_its_outputs(cell):
    """The gradients of all backends are compared with the reference's."""
    size = (3, 6, 2, 3)
    module = layers_of(cell, "reference", "none", size)
    data = batch(module, resets("random", *size[:2]))
    keys = ["x", *module.in_keys[1:-1]]

    def run(*inputs):
        return sequence(module, data.copy().update(dict(zip(keys, inputs, strict=True))))["y"]

    assert torch.autograd.gradcheck(run, [data[key].requires_grad_() for key in keys], fast_mode=True)


@pytest.mark.parametrize(("cell", "backend", "recompute"), [run for run in RUNS if run[2] != "none"])
def test_recomputing_runs_the_layer_again_in_the_backward_pass(cell, backend, recompute):
    size = SIZES["ordinary"]
    for way, times in (("none", 1), (recompute, 2)):
        module = layers_of(cell, backend, way, size)
        data = batch(module, resets("random", *size[:2]))
        with mock.patch.object(BACKENDS[backend], "sequence", wraps=BACKENDS[backend].sequence) as ran:
            output = sequence(module, data)["y"]
            assert ran.call_count == 1
            output.sum().backward()
        assert ran.call_count == times


@pytest.mark.parametrize("cell", TORCH_CELLS)
def test_gradients_of_biases_do_not_share_memory(cell):
    """Scaling one in place, as clipping does, must not scale the other."""
    module = layers_of(cell, "scan", "none", (12, 11, 5, 7))
    sequence(module, batch(module, resets("random", 12, 11)))["y"].sum().backward()
    storages = [parameter.grad.untyped_storage().data_ptr() for parameter in module.parameters()]
    assert len(set(storages)) == len(storages)


@pytest.mark.parametrize(("cell", "backend", "recompute"), [run for run in RUNS if run[0] in TORCH_CELLS])
def test_a_retained_graph_gives_the_same_gradients_twice(cell, backend, recompute):
    size = (3, 9, 4, 19)
    module = layers_of(cell, backend, recompute, size)
    loss = sequence(module, batch(module, resets("random", *size[:2])))["y"].square().sum()
    first, second = (torch.autograd.grad(loss, list(module.parameters()), retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


FUSED = [*product(TORCH_CELLS, ("native", "scan")), ("mingru", "native"), ("mlstm", "native")]


@pytest.mark.parametrize(("cell", "backend"), FUSED)
def test_a_second_derivative_is_rejected(cell, backend):
    module = layers_of(cell, backend, "none", (2, 3, 2, 3))
    data = batch(module, resets("none", 2, 3))
    data["x"].requires_grad_()
    with pytest.raises(RuntimeError, match="Choose backend=reference"):
        torch.autograd.grad(sequence(module, data)["y"].sum(), [data["x"]], create_graph=True)


COMPILED = [
    *((cell, "scan", "none") for cell in WITH_DERIVATIVE),
    ("lstm", "scan", "full"),
    *((cell, "native", "none") for cell, make in CELLS.items() if isinstance(make(1), LinearCell | MatrixCell)),
    *((cell, "native", recompute) for cell in TORCH_CELLS for recompute in ("none", "full")),
]


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("cell", "backend", "recompute"), COMPILED)
def test_a_compiled_module_equals_eager_with_and_without_gradients(cell, backend, recompute):
    size = (3, 6, 2, 4)
    module = layers_of(cell, backend, recompute, size, num_layers=2)
    data = batch(module, resets("random", *size[:2]))
    compiled = torch.compile(module, fullgraph=True)
    assert_equal(outputs_and_gradients(compiled, data), outputs_and_gradients(module, data))
    with torch.no_grad():
        results = [sequence(each, data) for each in (compiled, module)]
    outputs, expected = ([result[key] for key in module.out_keys] for result in results)
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_scan_that_recomputes_takes_rows_of_any_length():
    module = layers_of("lstm", "scan", "full", (2, 9, 5, 7))
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for steps in (9, 16, 25, 7):
        data = batch(module, resets("random", 2, steps)).select("x", "is_init")
        assert torch.equal(sequence(compiled, data)["y"], sequence(module, data)["y"])


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_scan_that_recomputes_keeps_less():
    size = (8, 64, 5, 7)
    modules = [layers_of("lstm", "scan", recompute, size) for recompute in ("full", "none")]
    data = batch(modules[0], resets("random", *size[:2])).select("x", "is_init")
    less, all_of_it = (numbers_kept(torch.compile(module, fullgraph=True), data) for module in modules)
    assert less < 0.5 * all_of_it


TRACED = [
    pytest.param(cell, *how, marks=() if cell == "indrnn" and "inductor" not in how else pytest.mark.slow)
    for cell in sorted(CELLS.keys() - WITH_DERIVATIVE)
    for how in ((7, "aot_eager"), (1, "aot_eager"), (7, "inductor"))
]


def assert_compiled_equals(module, reference, is_init, compiler):
    expected = outputs_and_gradients(reference, batch(reference, is_init))
    compiled = torch.compile(module, fullgraph=True, backend=compiler)
    assert_equal(outputs_and_gradients(compiled, batch(module, is_init)), expected)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("cell", "steps", "compiler"), TRACED)
def test_a_compiled_scan_of_a_cell_that_defines_only_a_step_equals_the_reference(cell, steps, compiler):
    """Random resets and stored states; every cell's weights enter its step, of which torch's scan gets some wrong."""
    assert ensure_scan_backward("cpu")
    size = (3, steps, 2, 4)
    reference, module = (layers_of(cell, backend, "none", size) for backend in ("reference", "scan"))
    assert_compiled_equals(module, reference, resets("random", *size[:2]), compiler)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_a_compiled_scan_of_an_lstm_with_a_projection_equals_the_reference(compiler):
    assert ensure_scan_backward("cpu")
    make = partial(LSTMModule, 2, 4, proj_size=3, in_key="x", out_key="y")
    reference, module = (make(recurrent_backend=backend).double() for backend in ("reference", "scan"))
    module.load_state_dict(reference.state_dict())
    assert_compiled_equals(module, reference, resets("random", 3, 7), compiler)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_scan_of_a_cell_that_defines_only_a_step_cannot_recompute():
    module = layers_of("indrnn", "scan", "full", (2, 3, 2, 3))
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="Choose recompute=none"):
        sequence(compiled, batch(module, resets("none", 2, 3)))
