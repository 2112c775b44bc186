"""The triton custom operators: autograd, memory, torch.compile, graph capture, autocast."""

from itertools import product

import pytest
import torch
from parity import batch, outputs_and_gradients, resets, sequence
from torch.utils._python_dispatch import TorchDispatchMode
from triton_layers import WAYS, make, small_tiles

from recurrl.recurrent.backends.triton import loop, tiles
from recurrl.recurrent.backends.triton.recurrence import TritonRecurrence
from recurrl.recurrent.cells import make_cell
from recurrl.recurrent.kernel import COMPLEX, REAL, WEIGHTS
from recurrl.recurrent.segments import Segments

pytestmark = pytest.mark.usefixtures("poisoned_memory")


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


def layer_and_inputs(cell):
    """A layer's kernel and its inputs."""
    weights = {name: torch.randn(shape) for name, shape in make_cell(cell, 6).parameter_shapes(4).items()}
    x, stored = torch.randn(2, 6, 4), [torch.randn(2, 6, 6) for _ in make_cell(cell, 6).state_shapes()]
    return loop.TritonLayer(cell, "ieee"), [*(weights.get(name) for name in WEIGHTS), x, STARTS, *stored]


def recurrence_and_inputs(numbers):
    """The kernel of a linear recurrence, and its inputs."""
    a, b, stored = torch.randn(3, 2, 6, 2, 3).unbind(0)
    return TritonRecurrence(numbers), [a, b, STARTS, stored]


STARTS = torch.tensor([[1, 0, 0, 1, 0, 0], [1, 0, 1, 0, 0, 0]]).bool()
COMPUTED = [*product([layer_and_inputs], tiles.CELLS), *product([recurrence_and_inputs], (REAL, COMPLEX))]


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
    with pytest.raises(ValueError, match=r"computes gru in torch\.float32, .* torch\.float64"):
        sequence(module, batch(module, resets("none", 2, 3)))
