"""What TorchRL documents of its recurrent modules holds for ours: both are run and compared."""

from itertools import product
from operator import attrgetter

import pytest
import torch
import torchrl.modules
from drop_ins import IN, KINDS, B, H, T, batch_of, made, sequence
from tensordict import TensorDict
from torch import nn

from recurrl import recurrent
from recurrl.recurrent import set_recurrent_mode

SIZES = {
    "plain": {},
    "no bias": {"bias": False},
    "python": {"python_based": True},
    "bidirectional": {"bidirectional": True},
    "two layers, bidirectional": {"num_layers": 2, "bidirectional": True},
    "dropout, evaluated": {"num_layers": 2, "dropout": 0.5},
    "projected": {"proj_size": 2},
    "all but dropout": {"num_layers": 2, "bidirectional": True, "bias": False, "proj_size": 2},
}
CALLS = ("step", "step without states", "sequence", "sequence without states", "one row", "rows of rows")
BACKENDS = (
    *((backend, "none") for backend in ("auto", "native", "pad", "reference", "scan")),
    *((backend, "full") for backend in ("native", "scan")),
)
EQUAL = {"rtol": 1e-7, "atol": 1e-9}


def pair(kind, backend="auto", recompute="none", **options):
    """TorchRL's module and ours with the same parameters, in float64."""
    ways = {"recurrent_backend": backend, "recurrent_recompute": recompute}
    theirs = made(kind, torchrl.modules, **options).double().eval()
    ours = made(kind, **ways, **options).double().eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def data_of(module, call):
    shape = {"step": (B,), "one row": (T,), "rows of rows": (2, B, T)}.get(call.removesuffix(" without states"), (B, T))
    data = batch_of(module, *shape)
    return data.select("x", "is_init") if call.endswith("without states") else data


def results(module, data, call):
    """Output, new states, and the gradients of a sum over all of them."""
    data = data.clone()
    leaves = [data[key].requires_grad_() for key in module.in_keys[:-1] if key in data.keys()]  # noqa: SIM118 (a TensorDict has no such test)
    with set_recurrent_mode(not call.startswith("step")):
        returned = module(data)
    outputs = [returned[key] for key in module.out_keys]
    weights = [torch.arange(value.numel()).sin().view_as(value) for value in outputs]
    total = sum((weight * value).sum() for weight, value in zip(weights, outputs, strict=True))
    inputs = [*leaves, *module.parameters()]
    gradients = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    return dict(enumerate([*outputs, *gradients]))


def possible(kind, sizes, call="", backend=""):
    """False for what torch, TorchRL or the kernel of ``native`` does not have; other tests are about these."""
    return "proj_size" not in SIZES[sizes] or (kind == "lstm" and call != "step" and backend != "native")


ITEMS = [
    pytest.param(
        *(kind, sizes, call, backend, recompute),
        marks=() if call == "sequence" or (sizes, backend) == ("plain", "auto") else pytest.mark.slow,
    )
    for kind, sizes, call, (backend, recompute) in product(KINDS, SIZES, CALLS, BACKENDS)
    if possible(kind, sizes, call, backend)
]


@pytest.mark.parametrize(("kind", "sizes", "call", "backend", "recompute"), ITEMS)
def test_outputs_states_and_gradients_equal_torchrls(kind, sizes, call, backend, recompute):
    theirs, ours = pair(kind, backend, recompute, **SIZES[sizes])
    data = data_of(theirs, call)
    torch.testing.assert_close(results(ours, data, call), results(theirs, data, call), **EQUAL)


def raised(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except Exception as error:
        return type(error)
    return None


REJECTED = {
    "time first": ({"batch_first": False}, "batch_first=False is not supported by"),
    "two inputs": ({"in_keys": ["x", "h", "c"]}, "Pass either in_key or in_keys"),
    "no input": ({"in_key": None}, "Pass either in_key or in_keys"),
    "no output": ({"out_key": None}, "Pass either out_key or out_keys"),
    "too few inputs": ({"in_key": None, "in_keys": ["x"]}, r"reads one input, \d state"),
    "too few outputs": ({"out_key": None, "out_keys": ["y"]}, r"writes one output and \d state"),
    "inputs as text": ({"in_key": None, "in_keys": "abc"}, "keys: list"),
    "resets by another name": ({"in_key": None, "in_keys": ["x", "h", "c", "resets"]}, "'is_init' last"),
    "unknown backend": ({"recurrent_backend": "other"}, "Unknown recurrent_backend 'other'"),
    "unknown recomputation": ({"recurrent_recompute": "partial"}, "Unknown recompute='partial'"),
    "unknown precision": ({"recurrent_matmul_precision": "fp16"}, "precision must be one of auto, .*got 'fp16'"),
    "unknown argument": ({"width": 3}, "unexpected keyword argument 'width'"),
}


@pytest.mark.parametrize(("options", "message"), REJECTED.values(), ids=REJECTED)
@pytest.mark.parametrize("kind", KINDS)
def test_what_torchrl_rejects_is_rejected(kind, options, message):
    theirs = raised(made, kind, torchrl.modules, **options)
    assert theirs is not None
    with pytest.raises(theirs, match=message):
        made(kind, **options)


NAMED = (
    *("in_keys", "out_keys", "canonical_keys", "DEFAULT_IN_KEYS", "DEFAULT_OUT_KEYS", "recurrent_mode"),
    *("recurrent_compute_dtype", "recurrent_recompute", "recurrent_matmul_precision"),
)
ATTRIBUTES = {
    **{name: attrgetter(name) for name in NAMED},
    "state_dict": lambda m: list(m.state_dict()),
    "parameters": lambda m: [name for name, _ in m.named_parameters()],
    "primer": lambda m: dict(m.make_tensordict_primer().primers.items(True, True)),
    "submodules": lambda m: [name for name, _ in m.named_modules()],
    "of torch": lambda m: [isinstance(each, nn.GRU | nn.LSTM) for each in m.modules()],
}


SOME = ("plain", "two layers, bidirectional", "projected")
MEMBERS = [each for each in product(KINDS, ATTRIBUTES, SOME) if possible(each[0], each[2])]


@pytest.mark.parametrize(("kind", "attribute", "sizes"), MEMBERS)
def test_members_equal_torchrls(kind, attribute, sizes):
    theirs, ours = (ATTRIBUTES[attribute](module) for module in pair(kind, **SIZES[sizes]))
    assert ours == theirs


RAISING = {
    "set_recurrent_mode": (lambda m: m.set_recurrent_mode(), r"recurrl\.recurrent\.set_recurrent_mode\(True\)"),
    "set_recurrent_mode(False)": (lambda m: m.set_recurrent_mode(False), "Use the context manager"),
    "temporal_mode": (lambda m: m.temporal_mode, "Use recurrent_mode"),
    "recurrent_mode = True": (lambda m: setattr(m, "recurrent_mode", True), "Use the context manager"),
    "is_init is missing": (lambda m: m(TensorDict({"x": torch.zeros(2, IN).double()}, [2])), "'is_init'"),
}


@pytest.mark.parametrize(("call", "message"), RAISING.values(), ids=RAISING)
@pytest.mark.parametrize("kind", KINDS)
def test_members_raise_what_torchrls_raise(kind, call, message):
    theirs, ours = pair(kind)
    with pytest.raises(Exception, match=message) as caught:
        call(ours)
    assert raised(call, theirs) is caught.type


def test_a_subclass_may_rename_its_states():
    class Renamed(recurrent.GRUModule):
        DEFAULT_IN_KEYS = ["memory"]  # noqa: RUF012 (as TorchRL's are)
        DEFAULT_OUT_KEYS = [("next", "memory")]  # noqa: RUF012

    module = Renamed(IN, H, in_key="x", out_key="y")
    assert module.in_keys == ["x", "memory", "is_init"]
    assert module.out_keys == ["y", ("next", "memory")]


@pytest.mark.parametrize("kind", KINDS)
def test_what_torchrl_rejects_runs(kind):
    def run(package):
        options = {"num_layers": 2, "bidirectional": True, "dropout": 0.5, "recurrent_backend": "scan"}
        module = made(kind, package, **options)
        return sequence(module, batch_of(module, B, T))["y"]

    assert run(recurrent).shape == (B, T, 2 * H)
    assert raised(run, torchrl.modules) in (ValueError, NotImplementedError)


@pytest.mark.parametrize("options", [{}, {"recurrent_backend": "auto"}, {"recurrent_backend": "pad"}])
@pytest.mark.parametrize("kind", KINDS)
def test_every_backend_recomputes(kind, options):
    options = {"recurrent_recompute": "full", **options}
    assert raised(made, kind, torchrl.modules, **options) is ValueError
    module, expected = made(kind, **options).double(), made(kind).double()
    data = data_of(module, "sequence")
    torch.testing.assert_close(results(module, data, "sequence"), results(expected, data, "sequence"), **EQUAL)


def test_a_projected_step_runs():
    theirs, ours = pair("lstm", proj_size=2)
    data = data_of(theirs, "step")
    assert raised(lambda: theirs(data.clone())) is RuntimeError
    begun = data.clone().masked_fill(data["is_init"].squeeze(-1), 0.0).update(data.select("x"))
    expected = sequence(ours, begun.unsqueeze(1))["y"].squeeze(1)
    torch.testing.assert_close(ours(data.clone())["y"], expected, **EQUAL)


def test_both_directions_run_by_the_kernels():
    theirs, ours = pair("lstm", "triton", **SIZES["bidirectional"])
    data = data_of(theirs, "sequence")
    in_float32 = data.apply(lambda value: value.float() if value.is_floating_point() else value)
    in_kernels = results(ours.float(), in_float32, "sequence")
    assert ours.backend_in_use == "triton"
    expected = results(theirs, data, "sequence")
    torch.testing.assert_close(in_kernels, expected, rtol=1e-4, atol=1e-5, check_dtype=False)
