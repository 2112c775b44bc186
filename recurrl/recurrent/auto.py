"""Chooses a layer's backend: the one named, or for ``auto`` the preferred one where it is supported, else ``scan``."""

from __future__ import annotations

import logging
import warnings
from functools import cache, partial

import torch

from recurrl.recurrent import precision
from recurrl.recurrent.backends import AUTO, Backend, Options, name_of, native, unsupported_reason, uses_torch_precision
from recurrl.recurrent.cell import Cell

_log_once = cache(partial(logging.getLogger(__name__).info, "backend auto is %s%s"))
_warn_once = cache(warnings.warn)


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
    compiling = torch.compiler.is_compiling()
    if backend == AUTO:
        backend = _choose(cell, options, device, dtype)
    elif not compiling:
        check_supported(owner, backend, cell, options, device)
    if not compiling and uses_torch_precision(backend):
        ignored = precision.unsupported_by_torch(
            name_of(backend), options.precision, options.compute_dtype, device
        ) or precision.conflict_with_torch(name_of(backend), options.precision, device)
        if ignored is not None:
            _warn_once(f"{owner} ignores an option: {ignored}")
    return backend


def check_supported(
    owner: str, backend: str | Backend, cell: Cell, options: Options, device: torch.device | None
) -> None:
    """Checks that a backend supports a cell with these options on a device; for None, on any device at all.

    Raises:
        ValueError: the backend does not support them.
    """
    reason = unsupported_reason(backend, cell, options, device)
    if reason is not None:
        raise ValueError(f"{owner}(recurrent_backend={name_of(backend)!r}): {reason}")


def preferred(device: torch.device) -> str:
    """The backend that ``auto`` tries first; it falls back to ``scan``, which supports every layer."""
    # Only native and scan compile without graph breaks. triton is left out until it has been run on a GPU.
    return "native" if torch.compiler.is_compiling() or device.type == "cpu" else "pad"


def _choose(cell: Cell, options: Options, device: torch.device, dtype: torch.dtype) -> str:
    name = preferred(device)
    reason = unsupported_reason(name, cell, options, device)
    if name == "native" and dtype not in native.DTYPES:
        reason = f"backend=native does not compute in {dtype}."
    if reason is not None:
        name = "scan"
    if not torch.compiler.is_compiling():
        _log_once(name, f": {reason}" if reason else "")
    return name
