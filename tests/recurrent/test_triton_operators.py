"""The triton custom operators: autograd, memory, torch.compile, graph capture, autocast."""

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import batch, outputs_and_gradients, resets
from torch.utils._python_dispatch import TorchDispatchMode
from triton_layers import CELLS, WAYS, make, small_tiles

from recurrl.recurrent import set_recurrent_mode
from recurrl.recurrent.backends.triton import loop, tiles
from recurrl.recurrent.backends.triton.recurrence import TritonRecurrence
from recurrl.recurrent.cells import make_cell
from recurrl.recurrent.kernel import COMPLEX, REAL, WEIGHTS
from recurrl.recurrent.segments import Segments

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def test_without_gradients_no_gates_are_kept(cell, kept_gates):
    module = make(cell, 6)
    data = batch(module, resets("random", 5, 7))
    with set_recurrent_mode(True):
        expected = module(data.clone())["y"]
        with torch.no_grad():
            output = module(data.clone())["y"]
    assert kept_gates == [True, False]
    assert torch.equal(output, expected)


@pytest.fixture
def kept_gates(monkeypatch):
    """Records, for each launch of the forward kernel, whether it writes the gates."""
    kept = []
    run = loop.Recurrence.run

    def watched(self, *arguments, **constants):
        kept.append(constants["KEEP"])
        run(self, *arguments, **constants)

    monkeypatch.setattr(loop.Recurrence, "run", watched)
    return kept


@pytest.mark.parametrize(("recompute", "is_kept"), [("none", True), ("full", False)])
def test_recomputation_keeps_no_gates(cell, recompute, is_kept, monkeypatch):
    kept = []
    outputs = loop.TritonLayer.outputs

    def watched(*arguments):
        made = outputs(*arguments)
        kept.append(weakref.ref(made[-1]))
        return made

    monkeypatch.setattr(loop.TritonLayer, "outputs", watched)
    module = make(cell, 16, **WAYS[recompute])
    with set_recurrent_mode(True):
        output = module(batch(module, resets("none", 2, 16)))["y"]
    assert output.requires_grad
    (gates,) = kept
    assert (gates() is not None) is is_kept


class NoLookAtTheData(TorchDispatchMode):
    """Rejects what waits for a GPU, and what a CUDA graph cannot capture: results that the host or a shape reads."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        assert "_local_scalar_dense" not in name
        assert "nonzero" not in name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("choose", [tiles.configuration, small_tiles], ids=["all steps", "step by step"])
def test_no_data_is_read_on_the_host(cell, choose, recompute, monkeypatch):
    monkeypatch.setattr(tiles, "configuration", choose)
    module = make(cell, 17, bidirectional=True, **WAYS[recompute])
    data = batch(module, resets("random", 2, 3))
    monkeypatch.delattr(Segments, "packing")
    with NoLookAtTheData():
        outputs_and_gradients(module, data)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.randoms(use_true_random=False))
def test_lanes_are_the_segments_longest_first_and_few_enough_at_each_step(rows, steps, drawn):
    is_init = torch.tensor([[drawn.random() < 0.4 for _ in range(steps)] for _ in range(rows)])
    packing = Segments(is_init).packing
    begin, length = loop._lanes(Segments(is_init).starts_BT)
    count = len(packing.starts_N)
    assert torch.equal(begin[:count], packing.starts_N)
    assert torch.equal(length[:count].long(), packing.ends_N - packing.starts_N + 1)
    assert not length[count:].any()
    for step, running in enumerate(packing.batch_sizes):
        assert running <= rows * steps // (step + 1)


def layer_and_inputs(cell):
    """A layer's kernel and its inputs."""
    weights = {name: torch.randn(shape) for name, shape in make_cell(cell, 6).parameters(4).items()}
    x, stored = torch.randn(2, 6, 4), [torch.randn(2, 6, 6) for _ in make_cell(cell, 6).states()]
    return loop.TritonLayer(cell, "ieee"), [*(weights.get(name) for name in WEIGHTS), x, STARTS, *stored]


def recurrence_and_inputs(numbers):
    """The kernel of a linear recurrence, and its inputs."""
    a, b, stored = torch.randn(3, 2, 6, 2, 3).unbind(0)
    return TritonRecurrence(numbers), [a, b, STARTS, stored]


STARTS = torch.tensor([[1, 0, 0, 1, 0, 0], [1, 0, 1, 0, 0, 0]]).bool()
COMPUTED = [(layer_and_inputs, cell) for cell in CELLS] + [(recurrence_and_inputs, each) for each in (REAL, COMPLEX)]


@pytest.mark.parametrize(("make_kernel", "of"), COMPUTED)
def test_the_operators_pass_torchs_registration_checks(make_kernel, of, one_launch_a_step):
    torch.use_deterministic_algorithms(False)  # NaN does not equal itself
    torch.manual_seed(0)
    kernel, inputs = make_kernel(of)
    forward, backward = (getattr(torch.ops.recurrl, name).default for name in ("forward", "backward"))
    names = [type(kernel).__module__, type(kernel).__name__, *kernel.options]
    for keep in (True, False):
        assert set(torch.library.opcheck(forward, (names, keep, inputs)).values()) == {"SUCCESS"}
    outputs = forward(names, True, inputs)
    incoming = [torch.randn_like(each) for each in outputs[: kernel.results]]
    always = [each is not None for each in inputs[: kernel.DIFFERENTIATED]]
    for needed in (True, False):
        wanted = [*always, *[needed and each is not STARTS for each in inputs[kernel.DIFFERENTIATED :]]]
        arguments = (names, inputs, outputs, incoming, wanted)
        assert set(torch.library.opcheck(backward, arguments).values()) == {"SUCCESS"}


@pytest.mark.parametrize("cell", ["lstm", "rtu"])  # of one operator each
def test_a_module_compiles_without_graph_breaks(cell):
    module = make(cell, 6, precision="auto")
    data = batch(module, resets("random", 5, 7))
    expected = outputs_and_gradients(module, data)
    compiled = outputs_and_gradients(torch.compile(module, fullgraph=True, backend="aot_eager"), data)
    torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-5)


def test_another_dtype_is_rejected():
    module = make("gru", 6).double()
    with set_recurrent_mode(True), pytest.raises(ValueError, match=r"computes in float32, .* torch\.float64"):
        module(batch(module, resets("none", 2, 3)).double())
