"""What TorchRL documents of its recurrent modules holds for ours: both are run and compared."""

import copy
import pickle
from itertools import product

import pytest
import torch
import torchrl.modules
from tensordict import TensorDict
from torch import nn

from recurrl import recurrent
from recurrl.recurrent import set_recurrent_mode

B, T, IN, H = 3, 6, 4, 5
KINDS = ("gru", "lstm")
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


def made(package, kind, **options):
    """The module of a package, in float64."""
    return getattr(package, f"{kind.upper()}Module")(IN, H, **{"in_key": "x", "out_key": "y", **options}).double()


def pair(kind, backend="auto", recompute="none", **options):
    """TorchRL's module and ours with the same parameters."""
    torch.manual_seed(0)
    ways = {"recurrent_backend": backend, "recurrent_recompute": recompute}
    theirs = made(torchrl.modules, kind, **options).eval()
    ours = made(recurrent, kind, **ways, **options).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def data_of(module, call):
    shape = {"step": (B,), "one row": (T,), "rows of rows": (2, B, T)}.get(call.removesuffix(" without states"), (B, T))
    torch.manual_seed(1)
    data = TensorDict({"x": torch.randn(*shape, IN).double(), "is_init": torch.rand(*shape, 1) < 0.3}, shape)
    if not call.endswith("without states"):
        specs = module.make_tensordict_primer().primers
        data.update({key: torch.randn(*shape, *specs[key].shape).double() for key in module.in_keys[1:-1]})
    return data


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
    "time first": {"batch_first": False},
    "two inputs": {"in_keys": ["x", "h", "c"]},
    "no input": {"in_key": None},
    "no output": {"out_key": None},
    "too few inputs": {"in_key": None, "in_keys": ["x"]},
    "too few outputs": {"out_key": None, "out_keys": ["y"]},
    "inputs as text": {"in_key": None, "in_keys": "abc"},
    "unknown backend": {"recurrent_backend": "other"},
    "unknown recomputation": {"recurrent_backend": "scan", "recurrent_recompute": "partial"},
    "unknown precision": {"recurrent_matmul_precision": "fp16"},
    "unknown argument": {"width": 3},
}


@pytest.mark.parametrize("case", REJECTED)
@pytest.mark.parametrize("kind", KINDS)
def test_what_torchrl_rejects_is_rejected(kind, case):
    theirs, ours = (raised(made, package, kind, **REJECTED[case]) for package in (torchrl.modules, recurrent))
    assert theirs is not None
    assert ours is not None
    assert issubclass(ours, theirs)


ATTRIBUTES = {
    "in_keys": lambda m: m.in_keys,
    "out_keys": lambda m: m.out_keys,
    "canonical_keys": lambda m: m.canonical_keys,
    "DEFAULT_IN_KEYS": lambda m: m.DEFAULT_IN_KEYS,
    "DEFAULT_OUT_KEYS": lambda m: m.DEFAULT_OUT_KEYS,
    "recurrent_mode": lambda m: m.recurrent_mode,
    "recurrent_compute_dtype": lambda m: m.recurrent_compute_dtype,
    "recurrent_recompute": lambda m: m.recurrent_recompute,
    "recurrent_matmul_precision": lambda m: m.recurrent_matmul_precision,
    "state_dict": lambda m: list(m.state_dict()),
    "parameters": lambda m: [name for name, _ in m.named_parameters()],
    "primer": lambda m: dict(m.make_tensordict_primer().primers.items(True, True)),
    "submodules": lambda m: [name for name, _ in m.named_modules()],
    "is an nn.GRU": lambda m: any(isinstance(each, nn.GRU) for each in m.modules()),
    "is an nn.LSTM": lambda m: any(isinstance(each, nn.LSTM) for each in m.modules()),
    "pickled": lambda m: list(pickle.loads(pickle.dumps(m)).state_dict()),
    "copied": lambda m: list(copy.deepcopy(m).state_dict()),
    "moved to float16": lambda m: {p.dtype for p in m.half().parameters()},
    "moved to meta": lambda m: {p.device.type for p in m.to("meta").parameters()},
}


SOME = ("plain", "two layers, bidirectional", "projected")
MEMBERS = [each for each in product(KINDS, ATTRIBUTES, SOME) if possible(each[0], each[2])]


@pytest.mark.parametrize(("kind", "attribute", "sizes"), MEMBERS)
def test_members_equal_torchrls(kind, attribute, sizes):
    theirs, ours = (ATTRIBUTES[attribute](module) for module in pair(kind, **SIZES[sizes]))
    assert ours == theirs


RAISING = {
    "set_recurrent_mode": lambda m: m.set_recurrent_mode(),
    "set_recurrent_mode(False)": lambda m: m.set_recurrent_mode(False),
    "temporal_mode": lambda m: m.temporal_mode,
    "recurrent_mode = True": lambda m: setattr(m, "recurrent_mode", True),
    "is_init is missing": lambda m: m(TensorDict({"x": torch.zeros(2, IN).double()}, [2])),
}


@pytest.mark.parametrize("case", RAISING)
@pytest.mark.parametrize("kind", KINDS)
def test_members_raise_what_torchrls_raise(kind, case):
    theirs, ours = pair(kind)
    expected = raised(RAISING[case], theirs)
    assert expected is not None
    assert raised(RAISING[case], ours) is expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_removed_method_says_what_to_use(kind):
    _, ours = pair(kind)
    with pytest.raises(RuntimeError, match=r"context manager recurrl\.recurrent\.set_recurrent_mode\(True\)"):
        ours.set_recurrent_mode()


def test_a_subclass_may_rename_its_states():
    class Renamed(recurrent.GRUModule):
        DEFAULT_IN_KEYS = ["memory"]  # noqa: RUF012 (as TorchRL's are)
        DEFAULT_OUT_KEYS = [("next", "memory")]  # noqa: RUF012

    module = Renamed(IN, H, in_key="x", out_key="y")
    assert module.in_keys == ["x", "memory", "is_init"]
    assert module.out_keys == ["y", ("next", "memory")]


@pytest.mark.parametrize("kind", KINDS)
def test_what_torchrl_rejects_runs(kind):
    options = {"num_layers": 2, "bidirectional": True, "dropout": 0.5, "recurrent_backend": "scan"}
    module = made(recurrent, kind, **options)
    with set_recurrent_mode(True):
        output = module(data_of(module, "sequence"))["y"]
    assert output.shape == (B, T, 2 * H)

    def theirs():
        rejected = made(torchrl.modules, kind, **options)
        with set_recurrent_mode(True):
            rejected(data_of(rejected, "sequence"))

    assert raised(theirs) in (ValueError, NotImplementedError)


@pytest.mark.parametrize("options", [{}, {"recurrent_backend": "auto"}, {"recurrent_backend": "pad"}])
@pytest.mark.parametrize("kind", KINDS)
def test_every_backend_recomputes(kind, options):
    options = {"recurrent_recompute": "full", **options}
    assert raised(made, torchrl.modules, kind, **options) is ValueError
    module, expected = made(recurrent, kind, **options), made(recurrent, kind)
    expected.load_state_dict(module.state_dict())
    data = data_of(module, "sequence")
    torch.testing.assert_close(results(module, data, "sequence"), results(expected, data, "sequence"), **EQUAL)


def test_a_projected_step_runs():
    theirs, ours = pair("lstm", proj_size=2)
    data = data_of(theirs, "step")
    assert raised(lambda: theirs(data.clone())) is RuntimeError
    begun = data.clone().masked_fill(data["is_init"].squeeze(-1), 0.0).update(data.select("x"))
    with set_recurrent_mode(True):
        expected = ours(begun.unsqueeze(1))
    torch.testing.assert_close(ours(data.clone())["y"], expected["y"].squeeze(1), **EQUAL)


def test_both_directions_run_by_the_kernels():
    theirs, ours = pair("lstm", "triton", **SIZES["bidirectional"])
    data = data_of(theirs, "sequence")
    in_float32 = data.apply(lambda value: value.float() if value.is_floating_point() else value)
    in_kernels = results(ours.float(), in_float32, "sequence")
    assert ours.backend_in_use == "triton"
    expected = results(theirs, data, "sequence")
    torch.testing.assert_close(in_kernels, expected, rtol=1e-4, atol=1e-5, check_dtype=False)
