"""Precision modes: names, precedence, resolution, and support by backend."""

import os
import subprocess
import sys
import warnings
from functools import partial

import pytest
import torch
from parity import batch, resets, sequence

from recurrl.recurrent import GRUModule, precision
from recurrl.recurrent.choice import _warn_once as warn_once
from recurrl.recurrent.precision import get_recurrent_matmul_precision, set_recurrent_matmul_precision
from recurrl.runtime import env_vars

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _settings(monkeypatch):
    """Restores torch's and our settings."""
    monkeypatch.delenv(env_vars.RNN_PRECISION, raising=False)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    set_recurrent_matmul_precision(None)
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]
    monkeypatch.undo()
    set_recurrent_matmul_precision(None)


@pytest.fixture
def gpu(monkeypatch):
    """Looks like a CUDA device of compute capability 9.0 to the precision module."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    return torch.device("cuda")


@pytest.mark.parametrize(("ours", "concrete"), [("fast", "tf32"), ("high-prec", "tf32x3")])
def test_a_preset_depends_on_the_device(gpu, ours, concrete):
    set_recurrent_matmul_precision(ours)
    assert get_recurrent_matmul_precision() == precision.resolve(ours, gpu) == concrete
    assert precision.resolve(ours, CPU) == "ieee"


WITHOUT_TENSOR_CORES = [(torch.version, "hip", "6.0"), (torch.cuda, "get_device_capability", lambda _: (7, 0))]


@pytest.mark.parametrize("changed", WITHOUT_TENSOR_CORES, ids=["AMD", "an old GPU"])
def test_a_preset_is_ieee_without_tensor_cores_of_nvidia(gpu, monkeypatch, changed):
    monkeypatch.setattr(*changed)
    assert precision.resolve("fast", gpu) == "ieee"


@pytest.mark.parametrize(("theirs", "concrete"), [("highest", "ieee"), ("high", "tf32x3"), ("medium", "tf32")])
def test_torchs_setting_is_the_default(gpu, theirs, concrete):
    torch.set_float32_matmul_precision(theirs)
    assert get_recurrent_matmul_precision() == concrete


def test_a_setting_overrides_the_environment_which_overrides_torch(gpu, monkeypatch):
    torch.set_float32_matmul_precision("medium")
    monkeypatch.setenv("TORCHRL_RNN_PRECISION", " TF32x3 ")
    assert get_recurrent_matmul_precision() == "tf32"  # which is read at a reset
    for reset, mode in ((None, "ieee"), ("auto", "tf32"), (None, "bf16")):
        set_recurrent_matmul_precision(reset)
        assert get_recurrent_matmul_precision() == "tf32x3"
        set_recurrent_matmul_precision(mode)
        assert get_recurrent_matmul_precision() == mode
    assert precision.resolve("ieee", gpu) == "ieee"


def test_the_package_can_be_imported_whatever_the_environment():
    read = "from recurrl.recurrent import get_recurrent_matmul_precision as get; print('imported'); get()"
    env = {**os.environ, "TORCHRL_RNN_PRECISION": "fp16"}
    result = subprocess.run([sys.executable, "-c", read], env=env, capture_output=True, text=True, timeout=120)
    assert result.stdout == "imported\n"
    error = result.stderr.splitlines()[-1]
    assert "must be one of auto, ieee, tf32, tf32x3, bf16, fast, high-prec (got 'fp16')." in error


def test_an_unknown_mode_is_rejected():
    with pytest.raises(ValueError, match="must be one of auto, ieee, tf32, tf32x3, bf16, fast, high-prec "):
        set_recurrent_matmul_precision("fp16")


IGNORED = [
    ("recurrent_matmul_precision", "tf32", "precision=tf32 needs a GPU"),
    ("recurrent_matmul_precision", "tf32x3", "precision=tf32x3 is not supported by"),
    ("recurrent_matmul_precision", "bf16", "precision=bf16 is not supported by"),
    ("recurrent_compute_dtype", torch.bfloat16, "recurrent_compute_dtype=torch.bfloat16 is not supported by"),
]


@pytest.mark.parametrize("backend", ["auto", "native", "reference", "pad", "scan"])
@pytest.mark.parametrize(("option", "value", "reason"), IGNORED)
def test_backends_on_torchs_matmuls_warn_once_and_ignore_what_they_cannot_follow(backend, option, value, reason):
    warn_once.cache_clear()
    make = partial(GRUModule, 3, 5, in_key="x", out_key="y", recurrent_backend=backend)
    module, plain = make(**{option: value}), make()
    plain.load_state_dict(module.state_dict())
    data = batch(module, resets("none", 2, 4))
    with pytest.warns(UserWarning, match=f"GRUModule ignores an option: {reason}"):
        output = sequence(module, data)["y"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(sequence(module, data)["y"], output)
    assert torch.equal(sequence(plain, data)["y"], output)


def test_torchs_setting_must_match_the_requested_precision(gpu):
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True
    assert precision.conflict_with_torch("scan", "tf32", gpu) is None
    assert precision.conflict_with_torch("scan", "auto", gpu) is None
    assert "allow_tf32 to False" in str(precision.conflict_with_torch("scan", "ieee", gpu))
    assert precision.conflict_with_torch("scan", "ieee", CPU) is None
