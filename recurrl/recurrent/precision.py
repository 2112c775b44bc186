"""Precision of the recurrent matmuls.

``ieee`` is full float32. ``tf32`` rounds the operands to 10 bits of mantissa, ``tf32x3`` makes up for that with three
matmuls, ``bf16`` rounds to 7 bits; all three need a GPU. ``fast`` and ``high-prec`` choose by device: ``tf32``
and ``tf32x3`` on an NVIDIA GPU of compute capability 8.0 or above, ``ieee`` elsewhere. ``auto`` resolves, in this
order, to the value passed to :func:`set_recurrent_matmul_precision`, the environment variable
``TORCHRL_RNN_PRECISION`` as it was at import, or the equivalent of ``torch.get_float32_matmul_precision()``:
``highest`` is ``ieee``, ``high`` is ``high-prec``, ``medium`` is ``fast``.

Backends that compute with torch's matmuls follow torch's settings instead.

Names, order and meaning follow ``torchrl.modules.set_recurrent_matmul_precision``; ``bf16`` is an addition.
"""

from __future__ import annotations

import torch

from recurrl.errors import require
from recurrl.runtime.env_vars import RNN_PRECISION, rnn_precision

AUTO = "auto"
PRESETS = {"fast": "tf32", "high-prec": "tf32x3"}
MODES = ("ieee", "tf32", "tf32x3", "bf16", *PRESETS)
_FROM_TORCH = {"highest": "ieee", "high": "high-prec", "medium": "fast"}

# Read at import: torch's setting outlasts a run that changes it, and the next job of a sweep must not inherit it.
_TORCH_AT_IMPORT = torch.get_float32_matmul_precision()

_override: str | None = rnn_precision()


def set_recurrent_matmul_precision(mode: str | None) -> None:
    """Sets the precision of all recurrent layers in this process that use ``auto``, starting with their next call.

    Args:
        mode: a concrete mode or a preset; ``auto`` or None for the environment variable, which is read again.

    Raises:
        ValueError: no such mode.
    """
    global _override
    check(mode or AUTO)
    _override = rnn_precision() if mode in (None, AUTO) else mode


def get_recurrent_matmul_precision() -> str:
    """The concrete mode that ``auto`` resolves to now, on the current CUDA device or else the CPU.

    Raises:
        ValueError: the environment variable is not a mode.
    """
    return resolve(AUTO, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def check(mode: str, source: str = "recurrent_matmul_precision") -> None:
    """Validates a mode.

    Raises:
        ConfigError: there is no such mode; the message names its source.
    """
    choices = (AUTO, *MODES)
    require(mode in choices, f"{source} must be one of {', '.join(choices)} (got {mode!r}).")


# Process-wide settings cannot be traced; the compiler uses their values at compile time.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def resolve(mode: str, device: torch.device) -> str:
    """The concrete mode that ``mode`` resolves to on ``device``.

    Raises:
        ValueError: the environment variable is not a mode.
    """
    if mode == AUTO:
        mode = _default(torch.get_float32_matmul_precision())
    if mode not in PRESETS:
        return mode
    # HIP builds of torch also call their devices cuda, but lack NVIDIA's formats.
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    has_tensor_cores = is_nvidia and torch.cuda.get_device_capability(device) >= (8, 0)
    return PRESETS[mode] if has_tensor_cores else "ieee"


def auto_mode() -> str:
    """The mode or preset that ``auto`` stands for, by torch's setting at import: earlier runs of a sweep may change it.

    Raises:
        ConfigError: the environment variable is not a mode.
    """
    return _default(_TORCH_AT_IMPORT)


def _default(torch_precision: str) -> str:
    if _override is None:
        return _FROM_TORCH[torch_precision]
    # Only a value from the environment can be wrong here: others were checked when they were set.
    check(_override, RNN_PRECISION)
    return _override


def unsupported_by_torch(backend: str, mode: str, compute_dtype: torch.dtype, device: torch.device) -> str | None:
    """For a backend that uses torch's matmuls: why ``mode`` is not available on ``device``, or None if it is."""
    if compute_dtype not in (torch.float32, torch.float64):
        return (
            f"recurrent_compute_dtype={compute_dtype} is not supported by backend={backend}, which computes in the "
            "dtype of its weights. Choose gru or lstm with backend=triton, or leave it at torch.float32."
        )
    if mode == AUTO:
        return None
    concrete = resolve(mode, device)
    if concrete in ("tf32x3", "bf16"):
        advice = "it needs gru or lstm with backend=triton, on a GPU."
        return f"precision={mode} is not supported by backend={backend}: {advice}"
    if concrete == "tf32" and device.type == "cpu":
        return f"precision={mode} needs a GPU, and device={device} has no such format. Choose precision=ieee."
    return None


def conflict_with_torch(backend: str, mode: str, device: torch.device) -> str | None:
    """For a backend that uses torch's matmuls: how torch's settings conflict with ``mode``, or None if they agree.

    On a GPU torch's matmul precision is process-wide, and the backward pass reads it too. So it can only be checked,
    not set for one layer.
    """
    if mode == AUTO or device.type != "cuda":
        return None
    concrete = resolve(mode, device)
    wanted = concrete == "tf32"
    if torch.backends.cuda.matmul.allow_tf32 == wanted and torch.backends.cudnn.allow_tf32 == wanted:
        return None
    return (
        f"precision={concrete} conflicts with torch's settings, which backend={backend} follows. Set "
        f"torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32 to {wanted}, or choose "
        "backend=triton or precision=auto."
    )
