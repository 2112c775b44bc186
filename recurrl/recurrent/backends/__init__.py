"""Backends: kernels that run one recurrent layer over a batch of rows, one module or package each.

A backend has the attributes of :class:`Backend`: a module here, loaded by name, or an object of a user's own. It runs a
single layer in one direction. Stacking, dropout and directions are shared by all backends and live in
:mod:`recurrl.recurrent.layer`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Protocol, cast

import torch
from torch import Tensor

from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.segments import Segments

AUTO = "auto"
RECOMPUTE = ("none", "full", "chunk")


@dataclass(frozen=True)
class Options:
    """User options that change how a backend computes, not what."""

    recompute: str = "none"
    """``none`` keeps what the backward pass needs, ``full`` recomputes it, ``chunk`` recomputes it piecewise."""
    precision: str = "auto"
    """Matmul precision, see :mod:`recurrl.recurrent.precision`."""
    compute_dtype: torch.dtype = torch.float32
    """Dtype of the recurrent matmul's operands."""
    fused: bool = True
    """Allow torch's fused kernels; otherwise everything runs in Python."""
    chunk_len: int = 0
    """Steps per chunk, for ``recompute="chunk"``."""


class Backend(Protocol):
    """The backend interface."""

    OWN_PRODUCTS: bool
    """True if the options set its matmul precision and dtype; False if torch's global settings and the weights do."""

    supports: Callable[[Cell, Options, torch.device | None], str | None]
    """None if the backend supports this cell and these options on the device, else an error message saying why not and
    what to choose. Without a device: whether any device would do.
    """

    sequence: Callable[[Cell, Tensor, Segments, States, Weights, Options], tuple[Tensor, States]]
    """``(cell, x_BTI, segments, stored_states, weights, options) -> (output_BTO, end_states)``, states ``[B, T, ...]``.

    A segment's first step starts from the stored state at that step. ``end_states`` hold each state at the last step
    of every segment, and zero elsewhere.
    """


@cache
def backend_names() -> tuple[str, ...]:
    """Names of all backends, ``auto`` first."""
    return (AUTO, *sorted(module.name for module in pkgutil.iter_modules(__path__)))


# Not functools.cache: torch.compile cannot trace it.
_loaded: dict[str, Backend] = {}


def load_backend(name: str | Backend) -> Backend:
    """Returns the backend called ``name`` (never ``auto``, which selects one of them); one of a user's own as it is.

    ``package.module:Name`` is a class of a user's own, called with options that hold only this ``name``.

    Raises:
        ValueError: no such backend.
    """
    if not isinstance(name, str):
        return name
    if name not in _loaded and ":" in name:
        module, _, attribute = name.partition(":")
        _loaded[name] = getattr(importlib.import_module(module), attribute)(SimpleNamespace(name=name))
    if name not in _loaded:
        if name not in backend_names() or name == AUTO:
            raise ValueError(f"Unknown recurrent_backend {name!r}. Choose one of: {', '.join(backend_names())}.")
        _loaded[name] = cast(Backend, importlib.import_module(f"{__name__}.{name}"))
    return _loaded[name]


def name_of(backend: str | Backend) -> str:
    """For messages."""
    return backend if isinstance(backend, str) else f"{type(backend).__module__}:{type(backend).__qualname__}"


def refusal(name: str | Backend, cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Why backend ``name`` cannot compute what is asked, or None if it can. ``auto`` can if any candidate can.

    Precision and dtype are not part of that, see :func:`follows_torch`.
    """
    if options.recompute not in RECOMPUTE:
        return f"Unknown recompute={options.recompute!r}. Choose one of: {', '.join(RECOMPUTE)}."
    if options.recompute == "chunk" and options.chunk_len < 1:
        return (
            f"recompute=chunk recomputes chunk_len steps at a time, but chunk_len={options.chunk_len}. Give 1 or more."
        )
    if name != AUTO:
        return load_backend(name).supports(cell, options, device)
    reasons = {each: load_backend(each).supports(cell, options, device) for each in candidates(device)}
    return None if None in reasons.values() else reasons["scan"]


def follows_torch(name: str | Backend) -> bool:
    """True if torch's settings and the weights' dtype decide the precision of backend ``name``, not the options."""
    return name == AUTO or not load_backend(name).OWN_PRODUCTS


def candidates(device: torch.device | None) -> tuple[str, ...]:
    """The backends that ``auto`` may choose, in order of preference."""
    # triton is left out until it has been run on a GPU.
    return ("native", "scan") if device is not None and device.type == "cpu" else ("pad", "scan")
