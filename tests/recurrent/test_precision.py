"""Precision modes: names, precedence, resolution, and support by backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from recurrl.recurrent import GRUModule, get_recurrent_matmul_precision, precision, set_recurrent_matmul_precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restores torch's and our settings."""
    monkeypatch.delenv(precision.ENVIRONMENT_VARIABLE, raising=False)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]
    set_recurrent_matmul_precision(None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Looks like a CUDA device of compute capability 9.0 to the precision module."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    return torch.device("cuda")


@pytest.mark.parametrize("mode", ["ieee", "tf32", "tf32x3", "bf16"])
def test_get_returns_the_mode_that_was_set(mode: str) -> None:
    set_recurrent_matmul_precision(mode)
    assert get_recurrent_matmul_precision() == mode


@pytest.mark.parametrize("reset", ["auto", None])
def test_a_setting_can_be_reset(reset: str | None) -> None:
    set_recurrent_matmul_precision("tf32")
    set_recurrent_matmul_precision(reset)
    assert get_recurrent_matmul_precision() == "ieee"


@pytest.mark.parametrize(("ours", "concrete"), [("fast", "tf32"), ("high-prec", "tf32x3")])
def test_a_preset_depends_on_the_device(gpu: torch.device, ours: str, concrete: str) -> None:
    set_recurrent_matmul_precision(ours)
    assert get_recurrent_matmul_precision() == precision.resolve(ours, gpu) == concrete
    assert precision.resolve(ours, CPU) == "ieee"


def test_a_preset_is_ieee_on_a_gpu_without_tensor_cores(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    assert precision.resolve("fast", gpu) == "ieee"


def test_a_preset_is_ieee_with_amd(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert precision.resolve("fast", gpu) == "ieee"


@pytest.mark.parametrize(("theirs", "concrete"), [("highest", "ieee"), ("high", "tf32x3"), ("medium", "tf32")])
def test_torchs_setting_is_the_default(gpu: torch.device, theirs: str, concrete: str) -> None:
    torch.set_float32_matmul_precision(theirs)
    assert get_recurrent_matmul_precision() == concrete


def test_a_setting_overrides_the_environment_which_overrides_torch(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_float32_matmul_precision("medium")
    monkeypatch.setenv("TORCHRL_RNN_PRECISION", " TF32x3 ")
    assert get_recurrent_matmul_precision() == "tf32x3"
    set_recurrent_matmul_precision("bf16")
    assert get_recurrent_matmul_precision() == "bf16"
    assert precision.resolve("ieee", gpu) == "ieee"


def test_an_invalid_environment_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHRL_RNN_PRECISION", "fp16")
    with pytest.raises(ValueError, match="TORCHRL_RNN_PRECISION is not a precision: 'fp16'"):
        get_recurrent_matmul_precision()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="Choose one of: auto, ieee, tf32, tf32x3, bf16, fast, high-prec"):
        set_recurrent_matmul_precision("fp16")
    with pytest.raises(ValueError, match="Invalid recurrent_matmul_precision: 'fp16'"):
        GRUModule(3, 5, in_key="x", out_key="y", recurrent_matmul_precision="fp16")


@pytest.mark.parametrize("backend", ["reference", "pad", "scan"])
@pytest.mark.parametrize("mode", ["tf32x3", "bf16"])
def test_backends_on_torchs_matmuls_refuse_modes_torch_lacks(backend: str, mode: str) -> None:
    with pytest.raises(ValueError, match=f"precision={mode} is not possible with backend={backend}: it needs"):
        GRUModule(3, 5, in_key="x", out_key="y", recurrent_backend=backend, recurrent_matmul_precision=mode)


@pytest.mark.parametrize("backend", ["reference", "pad", "scan"])
def test_a_compute_dtype_is_refused_where_it_would_be_ignored(backend: str) -> None:
    with pytest.raises(ValueError, match=r"recurrent_compute_dtype=torch.bfloat16 is not possible with backend="):
        GRUModule(3, 5, in_key="x", out_key="y", recurrent_backend=backend, recurrent_compute_dtype=torch.bfloat16)


def test_torchs_setting_must_match_the_requested_precision(gpu: torch.device) -> None:
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True
    assert precision.conflict_with_torch("scan", "tf32", gpu) is None
    assert precision.conflict_with_torch("scan", "auto", gpu) is None
    assert "allow_tf32 to False" in str(precision.conflict_with_torch("scan", "ieee", gpu))
    assert precision.conflict_with_torch("scan", "ieee", CPU) is None
