"""Backends: kernels that run one recurrent layer over a batch of rows, one module or package each.

A backend is a module here, loaded by name, or a custom object with the attributes of :class:`Backend`. It runs a single
layer in one direction. Stacking, dropout and directions are shared by all backends and live in
:mod:`recurrl.recurrent.layer`.

Shape legend: B rows, T steps, I input size, O output size.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol, cast

import torch
from torch import Tensor

from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.segments import Segments

AUTO = "auto"
RECOMPUTE = ("none", "full")


@dataclass(frozen=True)
class Options:
    """User options that change how a backend computes, not what.

    Attributes:
        recompute: ``none`` keeps what the backward pass needs; ``full`` runs the layer's forward pass again in the
            backward pass, with any backend.
        precision: matmul precision, see :mod:`recurrl.recurrent.precision`.
        compute_dtype: dtype of the recurrent matmul's operands.
    """

    recompute: str = "none"
    precision: str = "auto"
    compute_dtype: torch.dtype = torch.float32


class Backend(Protocol):
    """The backend interface.

    Attributes:
        controls_matmul_precision: True if the options set its matmul precision and dtype; False if torch's global
            settings and the weights do.
        supports: returns None if the backend supports this cell and these options on the device, else an error message
            with an alternative. If the device is None, checks whether any device would do.
        sequence: ``(cell, x_BTI, segments, stored_states, weights, options) -> (output_BTO, states)``, with states
            ``[B, T, ...]``. A segment's first step starts from the stored state at that step. The returned states are
            those after each segment's last step; at other steps they may be anything.
    """

    controls_matmul_precision: bool
    supports: Callable[[Cell, Options, torch.device | None], str | None]
    sequence: Callable[[Cell, Tensor, Segments, States, Weights, Options], tuple[Tensor, States]]


@cache
def backend_names() -> tuple[str, ...]:
    """Names of all backends, ``auto`` first."""
    return (AUTO, *sorted(module.name for module in pkgutil.iter_modules(__path__)))


# Not functools.cache: torch.compile cannot trace it.
loaded: dict[str, Backend] = {}
"""The backends that :func:`load_backend` has imported, by name."""


def load_backend(backend: str | Backend) -> Backend:
    """The backend of this name (never ``auto``, which selects one of them); a custom backend is returned as it is.

    Raises:
        ValueError: no such backend.
    """
    if not isinstance(backend, str):
        return backend
    if backend not in loaded:
        if backend not in backend_names() or backend == AUTO:
            raise ValueError(f"Unknown recurrent_backend {backend!r}. Choose one of: {', '.join(backend_names())}.")
        loaded[backend] = cast(Backend, importlib.import_module(f"{__name__}.{backend}"))
    return loaded[backend]


def name_of(backend: str | Backend) -> str:
    """The backend's name for messages."""
    return backend if isinstance(backend, str) else f"{type(backend).__module__}:{type(backend).__qualname__}"


def unsupported_reason(backend: str | Backend, cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Why the backend does not support the cell and the options on a device, or None if it does.

    Precision and dtype are checked elsewhere, see :func:`uses_torch_precision`.
    """
    if options.recompute not in RECOMPUTE:
        return f"Unknown recompute={options.recompute!r}. Choose one of: {', '.join(RECOMPUTE)}."
    # auto may choose scan, which supports every cell.
    return None if backend == AUTO else load_backend(backend).supports(cell, options, device)


def uses_torch_precision(backend: str | Backend) -> bool:
    """True if torch's settings and the weights' dtype decide the matmul precision, not the options."""
    return backend == AUTO or not load_backend(backend).controls_matmul_precision
