"""Compatibility with TorchRL's and torch's recurrent modules."""

import re

import pytest
import torch
import torchrl.modules
from drop_ins import IN, KINDS, H, batch_of, made, of_kind, sequence
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.envs import InitTracker, TensorDictPrimer, TransformedEnv
from torchrl.envs.libs.gym import GymEnv
from torchrl.modules.utils import get_primers_from_module

import recurrl.recurrent
from recurrl.recurrent import RecurrentModule, set_recurrent_mode

TORCH = {"gru": nn.GRU, "lstm": nn.LSTM}
PYTHON = {"gru": torchrl.modules.GRU, "lstm": torchrl.modules.LSTM}


@pytest.fixture(params=KINDS)
def name(request):
    return request.param


def test_every_public_torchrl_name_exists():
    theirs = {name for name in dir(torchrl.modules) if re.search("^GRU|^LSTM|rnn|recurrent", name)}
    assert len(theirs) >= 11
    assert theirs <= {*recurrl.recurrent.__all__}


@pytest.mark.parametrize("name", ["canonicalize_rnn_subset", "recurrent_mode", "set_recurrent_mode"])
def test_functions_are_torchrls_own(name):
    assert getattr(recurrl.recurrent, name) is getattr(torchrl.modules, name)


def test_a_torch_module_can_be_wrapped(name):
    wrapped = TORCH[name](IN, H, num_layers=2, batch_first=True)
    module = of_kind(name)(in_key="x", out_key="y", **{name: wrapped})
    assert getattr(module, name) is wrapped
    own = made(name, num_layers=2)
    getattr(own, name).load_state_dict(wrapped.state_dict())
    data = batch_of(module, 4, 7)
    torch.testing.assert_close(sequence(module, data), sequence(own, data))


EXCLUSIVE = [
    ({"input_size": 3}, True, "takes sizes or a .* to wrap, not both"),
    ({}, False, "batch_first=False is not supported by"),
    ({"input_size": 3}, None, "needs input_size and hidden_size"),
]


@pytest.mark.parametrize(("options", "batch_first", "message"), EXCLUSIVE)
def test_a_wrapped_module_and_sizes_exclude_each_other(name, options, batch_first, message):
    wrapped = None if batch_first is None else TORCH[name](IN, H, batch_first=batch_first)
    with pytest.raises(ValueError, match=message):
        of_kind(name)(in_key="x", out_key="y", **options, **{name: wrapped})


def test_converting_the_submodule_keeps_its_parameters(name):
    module = made(name, num_layers=2, dropout=0.5).eval()
    before = dict(module.named_parameters())
    data = batch_of(module, 4, 7)
    expected = sequence(module, data)
    for change, kind, python in (("make_cudnn_based", TORCH, False), ("make_python_based", PYTHON, True)):
        assert getattr(module, change)() is module
        assert isinstance(getattr(module, name), kind[name])
        assert module.python_based is python
        assert all(parameter is before[key] for key, parameter in module.named_parameters())
        assert not getattr(module, name).training
        torch.testing.assert_close(sequence(module, data), expected)


def test_a_projection_is_rejected_by_layers_without_one():
    for cell in ("gru", "mingru"):
        with pytest.raises(ValueError, match=f"proj_size=2 is not supported by cell '{cell}'"):
            RecurrentModule(cell, 3, 5, proj_size=2, in_key="x", out_key="y")


@pytest.mark.parametrize("options", [{}, {"python_based": True}, {"python_based": True, "recurrent_backend": "pad"}])
def test_the_module_runs_inside_vmap(name, options):
    """Any module for a step, one in plain Python for sequences."""
    module = made(name, **options)
    shape, run = ((4, 7), sequence) if options else ((4,), type(module).forward)
    data = batch_of(module, *shape)

    def outputs(x):
        return run(module, data.copy().set("x", x))["y"]

    x = torch.randn(2, *shape, IN)
    torch.testing.assert_close(torch.vmap(outputs)(x), torch.stack([outputs(one) for one in x]))


def test_tensors_can_be_passed_without_a_tensordict(name):
    module = made(name)
    data = batch_of(module, 4)
    output, *_ = module(**{key: data[key] for key in module.in_keys})
    torch.testing.assert_close(output, module(data.clone())["y"])


def test_keys_may_be_nested(name):
    plain = made(name)
    states = [("memory", key) for key in plain.state_keys]
    keys = {"in_keys": [("agents", "x"), *states, ("agents", "is_init")]}
    keys |= {"out_keys": [("agents", "y"), *(("next", *key) for key in states)]}
    module = made(name, in_key=None, out_key=None, **keys)
    data = batch_of(plain, 4, 7)
    expected = sequence(plain, data)
    of_agents = data.select("x", "is_init")
    returned = sequence(module, TensorDict({"agents": of_agents, "memory": data.select(*plain.state_keys)}, [4, 7]))
    torch.testing.assert_close(returned["agents", "y"], expected["y"])
    torch.testing.assert_close(returned["next", *states[0]], expected["next", states[0][1]])
    assert set(module.make_tensordict_primer().primers.keys(True, True)) == set(states)


def test_the_primer_adds_states_to_an_environment(name):
    sizes = {"num_layers": 2, "bidirectional": True}
    module = of_kind(name)(3, H, **sizes, in_key="observation", out_key="features")
    policy = TensorDictSequential(module, TensorDictModule(nn.Linear(10, 1), ["features"], ["action"]))
    primer = get_primers_from_module(policy)
    assert isinstance(primer, TensorDictPrimer)
    env = TransformedEnv(GymEnv("Pendulum-v1"), InitTracker()).append_transform(primer)
    rollout = env.rollout(4, policy)
    assert rollout[module.state_keys[0]].shape == (4, 4, 5)
    assert not rollout[module.state_keys[0]][0].any()
    assert torch.equal(rollout[module.state_keys[0]][1], rollout["next", module.state_keys[0]][0])


def test_one_of_two_states_is_not_enough():
    module = made("lstm")
    with pytest.raises(KeyError, match=r"needs the entries \['recurrent_state_c'\]"):
        module(batch_of(module, 4).exclude("recurrent_state_c"))


def test_the_mode_can_be_passed(name):
    module = made(name, default_recurrent_mode=True)
    assert module.recurrent_mode
    with set_recurrent_mode(False):
        assert not module.recurrent_mode


@pytest.mark.parametrize("inplace", [True, False])
def test_canonicalizing_affects_only_the_modules_entries(name, inplace):
    module = made(name)
    gaps = torch.randn(5, 4, IN).transpose(0, 1)
    data = TensorDict({"x": gaps, "reward": gaps}, [4, 5])
    result = module.canonicalize(data, inplace=inplace)
    assert (result is data) is inplace
    assert result["x"].is_contiguous()
    assert not result["reward"].is_contiguous()
    assert data["x"].is_contiguous() is inplace


@pytest.mark.parametrize("backend", ["reference", "pad", "scan", "triton"])
def test_under_autocast_the_layer_computes_in_the_dtype_of_its_weights(name, backend):
    module = made(name, recurrent_backend=backend)
    data = batch_of(module, 4, 7)
    rounded = data.clone().set("x", data["x"].bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        output = sequence(module, rounded)["y"]
    expected = sequence(module, data.clone().set("x", data["x"].bfloat16().float()))["y"]
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_resets_may_be_numbers_and_rows_none(name, dtype):
    module = made(name)
    data = batch_of(module, 4, 7)
    numbers = data.clone().set("is_init", data["is_init"].to(dtype))
    for rows in (slice(None), slice(0)):
        assert torch.equal(sequence(module, numbers[rows])["y"], sequence(module, data[rows])["y"])


@pytest.mark.parametrize("backend", ["reference", "pad", "scan"])
def test_mixed_dtypes_without_autocast_raise(name, backend):
    module = made(name, recurrent_backend=backend)
    data = batch_of(module, 4, 7)
    with pytest.raises(RuntimeError, match="dtype"):
        sequence(module, data.set("x", data["x"].double()))
