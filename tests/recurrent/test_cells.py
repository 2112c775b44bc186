"""What a cell declares, and what is made of it."""

import math
import pickle
from copy import deepcopy

import pytest
import torch
from found import CELLS, Several, layers_of
from parity import batch, outputs_and_gradients, resets, sequence
from rejections import error_of
from torch import nn
from torch.nn import functional

from recurrl.config.plugins import options_class, yaml_values
from recurrl.errors import ConfigError
from recurrl.policy.build import cell_from_options
from recurrl.recurrent import GatedCell, RecurrentModule
from recurrl.recurrent.backends import Options
from recurrl.recurrent.cells import cell_names
from recurrl.recurrent.cells.lru import LRU
from recurrl.recurrent.cells.lstm import LSTM
from recurrl.recurrent.cells.rtu import RTU
from recurrl.recurrent.cells.s5 import S5
from recurrl.recurrent.choice import unsupported_reason
from recurrl.recurrent.linear import gated
from recurrl.recurrent.windows import convolved, windows

CPU = torch.device("cpu")


def layers(cell, *arguments, **options):
    torch.manual_seed(0)
    return RecurrentModule(cell, *arguments, in_key="x", out_key="y", **options)


@pytest.mark.parametrize("cell", CELLS)
def test_each_layer_and_direction_has_the_declared_parameters_and_states(cell):
    module = layers_of(cell, "auto", "none", (0, 0, 3, 5), num_layers=2, bidirectional=True)
    made = CELLS[cell](5)
    expected = {
        f"{name}_l{layer}{direction}": shape
        for layer, inputs in enumerate((3, 10))
        for direction in ("", "_reverse")
        for name, shape in made.parameter_shapes(inputs).items()
    }
    assert {name: tuple(value.shape) for name, value in module.layers.named_parameters()} == expected
    primers = module.make_tensordict_primer().primers
    assert [tuple(primers[key].shape) for key in module.state_keys] == [(4, *s) for s in made.state_shapes().values()]


@pytest.mark.parametrize("cell", CELLS)
def test_a_copy_computes_the_same(cell):
    module = layers_of(cell, "scan", "none", (3, 5, 3, 5))
    data = batch(module, resets("random", 3, 5))
    expected = outputs_and_gradients(module, data)
    for copied in (deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(outputs_and_gradients(copied, data), expected, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["reference", "scan", "auto"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_layer_and_its_input_must_be_on_one_device(cell, backend):
    module = layers_of(cell, backend, "none", (3, 5, 3, 5))
    data = batch(module, resets("none", 3, 5))
    with pytest.raises(NotImplementedError, match="out of meta tensor"):
        sequence(module, data.copy().update({"is_init": data["is_init"].to("meta")}))
    assert "layer is on meta, but its input is on cpu" in error_of(sequence, module.to("meta"), data, kind=ValueError)


@pytest.mark.native
@pytest.mark.parametrize("cell", ["gru", "mingru", "mlstm"])
def test_the_kernels_of_a_cpu_take_a_batch_without_rows(cell):
    module = layers_of(cell, "native", "none", (3, 5, 3, 5))
    data = batch(module, resets("random", 3, 5))
    assert sequence(module, data[:0])["y"].shape == (0, *sequence(module, data)["y"].shape[1:])


@pytest.mark.parametrize("size", [100.0, 1e4])
@pytest.mark.parametrize("backend", ["reference", "scan", "auto"])
@pytest.mark.parametrize("cell", CELLS)
def test_extreme_inputs_give_finite_outputs_states_and_gradients(cell, backend, size):
    module = layers_of(cell, backend, "none", (4, 9, 3, 5)).float()
    data = batch(module, torch.cat([resets(pattern, 4, 9) for pattern in ("none", "every step", "random")]))
    random = data["x"].sign()
    for signs in (1, -1, random, -random):
        data["x"] = size * signs * torch.ones_like(random)
        for scale in (0.0, 1.0):
            stored = {key: scale * batch(module, data["is_init"])[key].abs() for key in module.state_keys}
            for name, value in outputs_and_gradients(module, data.copy().update(stored)).items():
                assert value.isfinite().all(), (name, scale)


@pytest.mark.parametrize("cell", cell_names())
def test_a_cell_made_by_name_has_the_defaults_of_its_yaml(cell):
    made = cell_from_options(options_class("cell", cell)(**yaml_values("cell", cell)))
    assert vars(made) == vars(CELLS[cell](made.hidden_size))


def test_parameters_are_initialised_like_torchs_as_the_cell_says_or_to_zero(monkeypatch):
    class Own(Several):
        def initialize(self, name, parameter):
            if name == "scale":
                parameter.fill_(7.0)
            elif name == "weight":
                super().initialize(name, parameter)

    monkeypatch.setattr(torch, "empty", lambda shape, device: torch.full(shape, torch.nan, device=device))
    of_layers = iter(layers(Own(4), 3, num_layers=2).layers.parameters())
    for cube, scale, weight in zip(of_layers, of_layers, of_layers, strict=True):
        assert not cube.any()
        assert scale == 7
        assert 0 < weight.abs().max() <= 0.5
        assert weight.std() > 0.1


def returning(change):
    """A step that returns something else than :class:`Several`'s."""
    return lambda cell, weights, x_BX, states: change(*Several.step(cell, weights, x_BX, states))


def in_place(cell, weights, x_BX, states):
    states[1].mul_(0.5)
    return Several.step(cell, weights, x_BX, states)


HELD = {"scale": nn.Parameter(torch.ones(2)), "map": nn.Linear(2, 2)}
HOLDING = {"__init__": lambda cell, size: vars(cell).update(HELD, hidden_size=size)}
WRONG_CELLS = [
    ({"project": lambda cell, _, x: vars(cell).update(last=x) or x}, r"of the cell wrong must not set self\.last\."),
    ({"step": returning(lambda output, _: output)}, r"\(got a Tensor\)\. Return \(output, \(state,.* activate, \(st"),
    ({"state_shapes": lambda _: {"": 7}}, r"wrong fails in a first step with TypeError: .* Look at its state_shapes\."),
    ({"step": returning(lambda output, states: (output, states[0]))}, r"must return its output and a tuple of st"),
    ({"step": returning(lambda output, states: (output[:, 1:], states))}, r"shape \(4,\) .* declare \(5,\)"),
    (
        {"step": returning(lambda output, states: (output, (states[0], states[1].mT, states[2])))},
        r"\[\(\), \(3, 2\), .* \[\(\), \(2, 3\),",
    ),
    ({"step": in_place}, r"step of the cell wrong writes into the states it gets\. Return new tensors"),
    ({"step": returning(lambda output, states: (output.double(), states))}, "returns torch.float64, but its param"),
    (HOLDING, r"holds scale, map, which would be neither trained nor saved\. Declare"),
    ({"state_shapes": lambda _: {}}, "has 3 parameters and 0 states. A cell has at least one of each"),
    ({"parameter_shapes": lambda *_: {}}, "has 0 parameters and 3 states"),
]


@pytest.mark.parametrize(("methods", "message"), WRONG_CELLS)
def test_a_step_that_does_not_return_what_the_cell_declares_is_rejected(methods, message):
    with pytest.raises(ConfigError, match=message):
        layers(type("Wrong", (Several,), methods)(5), 3)


@pytest.mark.parametrize("options", [{"hidden_size": 5}, {"bias": False}, {"proj_size": 2}], ids=str)
def test_options_of_a_cell_object_are_rejected_by_the_module(options):
    with pytest.raises(ValueError, match="takes hidden_size, bias and proj_size with the name of a cell only"):
        layers(Several(5), 3, **options)


class GRU(Several):
    """Bears the name of another cell."""


def test_a_cell_of_the_same_name_does_not_get_the_kernels_of_the_packages():
    assert "has no kernel" in str(unsupported_reason("triton", GRU(4), Options(), CPU))
    assert "no fused kernel" in str(unsupported_reason("pad", GRU(4), Options(), CPU))
    assert unsupported_reason("auto", GRU(4), Options("full"), CPU) is None
    module = layers(GRU(4), 3)
    assert set(module.cell.parameter_shapes(3)) == {"cube", "scale", "weight"}
    assert "cannot be converted" in error_of(module.make_cudnn_based, kind=ValueError)


def test_the_error_of_a_gated_cell_names_what_its_author_wrote():
    # Without super().__init__.
    wrong = type("Wrong", (GatedCell,), {"hidden_size": 5, "__init__": lambda _: None, "activate": None, "GATES": 1})
    assert "Look at its hidden_size, __init__, activate, GATES." in error_of(layers, wrong(), 3)


WRONG_CLASSES = [
    (LSTM, {}, "Derive from GatedCell"),
    *((GatedCell, {"STATES": of}, r"Wrong\.STATES must be a tuple of dif.* \(got ") for of in ("_h", (), ("_h", "_h"))),
]


@pytest.mark.parametrize(("base", "members", "message"), WRONG_CLASSES)
def test_a_gated_cell_has_different_states_and_no_base_with_kernels(base, members, message):
    with pytest.raises(TypeError, match=message):
        type("Wrong", (base,), members)


def test_an_unknown_name_gets_the_names_there_are():
    with pytest.raises(ValueError, match=f"Unknown cell 'gruu'. Choose one of: {', '.join(cell_names())}"):
        layers("gruu", 3, 5)


def test_a_short_convolution_is_torchs():
    torch.manual_seed(0)
    inputs, weight, bias = torch.randn(2, 9, 5), torch.randn(4, 5), torch.randn(5)
    starts = torch.zeros(2, 9, dtype=torch.bool)
    starts[:, 0] = True
    output = convolved(windows(inputs, starts, torch.zeros(2, 9, 3, 5)), weight, bias)
    expected = functional.conv1d(functional.pad(inputs.mT, (3, 0)), weight.T.unsqueeze(1), bias, groups=5).mT
    torch.testing.assert_close(output, expected)


def test_the_gradient_of_an_open_gate_keeps_its_digits():
    gate = torch.tensor(14.0, requires_grad=True)
    gated(torch.tensor(1.0), gate).backward()
    exact = torch.sigmoid(torch.tensor(-14.0, dtype=torch.float64)) * torch.sigmoid(torch.tensor(14.0))
    torch.testing.assert_close(gate.grad.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("gate", [-90.0, -5.0, 0.0, 5.0])
def test_slstms_first_output_does_not_depend_on_how_much_enters(gate):
    """The weighted mean of one number is that number."""
    module = layers("slstm", 3, 4).double()
    with torch.no_grad():
        module.layers.bias_ih_l0[:4] += gate
    data = batch(module, resets("first", 2, 1)).exclude("recurrent_state_h", *module.state_keys)
    weights = weights_of(module)
    x = functional.linear(data["x"][:, 0], weights["weight_ih"], weights["bias_ih"] + weights["bias_hh"])
    _, _, z, o = x.chunk(4, -1)
    torch.testing.assert_close(module(data)["y"][:, 0], torch.sigmoid(o) * torch.tanh(z))


@pytest.mark.parametrize("cell", ["mingru", "minlstm"])
def test_units_forget_at_different_rates_from_the_start(cell):
    module = layers(cell, 3, 1000)
    weights = weights_of(module)
    ((kept, _),), _ = module.cell.coefficients(weights, module.cell.project(weights, torch.zeros(3)))
    assert_uniform(kept)


@pytest.mark.parametrize("cell", [LRU(4, 1000), RTU(2000)], ids=["lru", "rtu"])
def test_the_coefficients_of_a_complex_state_begin_all_over_the_unit_disk(cell):
    a = complex_coefficients(cell)
    assert_uniform(a.abs().square())
    assert_uniform(a.angle().div(2 * math.pi).remainder(1))


def assert_uniform(values):
    quantiles = torch.tensor([0.1, 0.5, 0.9])
    torch.testing.assert_close(values.quantile(quantiles), quantiles, rtol=0, atol=0.05)


def test_s5s_states_halve_in_1_to_1400_steps_at_first():
    half_lives = math.log(0.5) / complex_coefficients(S5(4, 1000)).abs().log()
    expected = 2 * math.log(2) * torch.tensor([1.0, 1000**0.5, 1000.0])
    torch.testing.assert_close(half_lives.quantile(torch.tensor([0.0, 0.5, 1.0])), expected, rtol=0.2, atol=0)


def complex_coefficients(cell):
    """Those of each state of a new layer."""
    ((a, _),), _ = cell.coefficients(weights_of(layers(cell, 3)), torch.zeros(3))
    return torch.complex(*a.detach())


@pytest.mark.parametrize("cell", ["gated_deltanet", "mlstm"])
def test_a_memory_adds_little_to_a_map_of_the_input_at_first(cell):
    module = layers(cell, 3, 64)
    data = batch(module, resets("first", 20, 10)).exclude(*module.state_keys)
    output = sequence(module, data)["y"]
    skip = functional.linear(data["x"], weights_of(module)["weight_skip"])
    assert (output - skip).norm() < 0.1 * skip.norm()


def weights_of(module):
    return {name.removesuffix("_l0"): value for name, value in module.layers.named_parameters()}
