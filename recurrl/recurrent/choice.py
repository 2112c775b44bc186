"""The backends by name, which of them supports a layer, and which one ``auto`` chooses."""

from __future__ import annotations

import logging
import warnings
from functools import cache, partial
from typing import cast

import torch

from recurrl.recurrent import precision
from recurrl.recurrent.backends import Backend, Options, native, pad, reference, scan, triton
from recurrl.recurrent.cell import Cell

AUTO = "auto"
BACKENDS = cast(
    dict[str, Backend], {"native": native, "pad": pad, "reference": reference, "scan": scan, "triton": triton}
)
"""The backends of the package by name."""
RECOMPUTE = ("none", "full")

_log_once = cache(partial(logging.getLogger(__name__).info, "backend=auto chose %s%s"))
_warn_once = cache(warnings.warn)


def backend_of(backend: str | Backend) -> Backend:
    """The backend of this name (never ``auto``, which selects one of them); a custom backend is returned as it is.

    Raises:
        ValueError: no such backend.
    """
    if not isinstance(backend, str):
        return backend
    if backend not in BACKENDS:
        raise ValueError(f"Unknown recurrent_backend {backend!r}. Choose one of: {', '.join((AUTO, *BACKENDS))}.")
    return BACKENDS[backend]


def name_of(backend: str | Backend) -> str:
    """The backend's name for messages."""
    return backend if isinstance(backend, str) else f"{type(backend).__module__}:{type(backend).__qualname__}"


def unsupported_reason(backend: str | Backend, cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Why the backend does not support the cell and the options on a device, or None if it does.

    For a backend whose precision torch's settings decide, :func:`resolve` warns about precision and compute dtype.
    """
    if options.recompute not in RECOMPUTE:
        return f"Unknown recompute={options.recompute!r}. Choose one of: {', '.join(RECOMPUTE)}."
    # auto may choose scan, which supports every cell.
    return None if backend == AUTO else backend_of(backend).supports(cell, options, device)


def check_supported(
    owner: str, backend: str | Backend, cell: Cell, options: Options, device: torch.device | None
) -> None:
    """Checks that a backend supports a cell with these options on a device; for None, on any device at all.

    Raises:
        ValueError: the backend does not support them; the message names ``owner``.
    """
    reason = unsupported_reason(backend, cell, options, device)
    if reason is not None:
        raise ValueError(f"{owner}(recurrent_backend={name_of(backend)!r}): {reason}")


def uses_torch_precision(backend: str | Backend) -> bool:
    """True if torch's settings and the weights' dtype decide the matmul precision, not the options."""
    return backend == AUTO or not backend_of(backend).controls_matmul_precision


def resolve(
    owner: str, cell: Cell, backend: str | Backend, options: Options, device: torch.device, dtype: torch.dtype
) -> str | Backend:
    """Resolves the requested backend to a concrete one, never ``auto``.

    Logs each distinct choice of ``auto`` once per process, and warns once about each option that the backend ignores.
    Under ``torch.compile`` it does neither, and does not check that a named backend is supported.

    Args:
        owner: the name of the module in messages.
        cell: the layers' cell.
        backend: ``auto``, a name, or a custom backend.
        options: the layers' options.
        device: the input's device.
        dtype: the input's dtype.

    Raises:
        ValueError: the backend does not support the cell or the options on this device.
    """
    if torch.compiler.is_compiling():
        return _choose(cell, options, device, dtype)[0] if backend == AUTO else backend
    if backend == AUTO:
        backend, reason = _choose(cell, options, device, dtype)
        # Without the advice of the error: auto has followed it.
        _log_once(backend, f": {reason.partition(' Choose backend=')[0]}" if reason else "")
    else:
        check_supported(owner, backend, cell, options, device)
    if uses_torch_precision(backend):
        name = name_of(backend)
        ignored = precision.unsupported_by_torch(name, options.precision, options.compute_dtype, device)
        ignored = ignored or precision.conflict_with_torch(name, options.precision, device)
        if ignored is not None:
            _warn_once(f"{owner} ignores an option: {ignored}")
    return backend


def _choose(cell: Cell, options: Options, device: torch.device, dtype: torch.dtype) -> tuple[str, str | None]:
    """The backend for ``auto``; if it is ``scan``, which supports every layer, also why no faster one runs this one."""
    # pad and reference do not compile without graph breaks. triton does, but has not been run on a GPU.
    name = "native" if torch.compiler.is_compiling() or device.type == "cpu" else "pad"
    reason = unsupported_reason(name, cell, options, device)
    if name == "native" and dtype not in native.DTYPES:
        reason = f"backend=native does not compute in {dtype}."
    return ("scan" if reason else name), reason
