"""The kernels that run one recurrent layer over a batch of rows: one module (or package) a backend.

A backend is a module with the attributes of :class:`Backend`; ``load_backend`` finds it by name. It runs one layer in
one direction. Stacking layers, dropout between them and directions are the same for all, and live in
:mod:`recurrl.recurrent.layer`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from recurrl.recurrent.cells import Cell
from recurrl.recurrent.segments import Segments

AUTO = "auto"


class LayerWeights(NamedTuple):
    """Parameters of one layer in one direction, in torch's layout; biases are None when the layer has none."""

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None
    b_hh: Tensor | None

    def present(self) -> list[Tensor]:
        """The parameters there are, in torch's order."""
        return [weight for weight in self if weight is not None]


@dataclass(frozen=True)
class Options:
    """What a user may ask of a backend besides the result."""

    recompute: str = "none"
    precision: str = "ieee"


class Backend(Protocol):
    """The interface of a kernel."""

    supports: Callable[[Cell, Options, torch.device], str | None]
    """None when the backend can do what is asked on that device, else a sentence: why not, and what to choose."""

    sequence: Callable[
        [Cell, Tensor, Segments, tuple[Tensor, ...], LayerWeights, Options], tuple[Tensor, tuple[Tensor, ...]]
    ]
    """``(cell, x_BTI, segments, stored_states_BTH, weights, options) -> (output_BTH, end_states_BTH)``.

    The state that enters a segment's first step is the stored state at that step. ``end_states`` hold each state at
    the last step of every segment; what they hold elsewhere is unspecified.
    """


@cache
def backend_names() -> tuple[str, ...]:
    """The names of the backends there are, ``auto`` first."""
    return (AUTO, *sorted(module.name for module in pkgutil.iter_modules(__path__)))


@cache
def load_backend(name: str) -> Backend:
    """The backend called ``name`` (not ``auto``, which is a choice among them: see :func:`choose`).

    Raises:
        ValueError: there is no such backend.
    """
    if name not in backend_names() or name == AUTO:
        raise ValueError(f"There is no backend {name!r}. Choose one of: {', '.join(backend_names())}.")
    return cast(Backend, importlib.import_module(f"{__name__}.{name}"))


def refusal(name: str, cell: Cell, options: Options, device: torch.device) -> str | None:
    """Why backend ``name`` cannot do what is asked, or None when it can. ``auto`` can if any of its choices can."""
    if name == AUTO:
        reasons = [load_backend(candidate).supports(cell, options, device) for candidate in _candidates(device)]
        return None if None in reasons else reasons[0]
    return load_backend(name).supports(cell, options, device)


def choose(cell: Cell, options: Options, device: torch.device) -> str:
    """The backend ``auto`` stands for: the first of the device's candidates that can do what is asked.

    Raises:
        ValueError: none can.
    """
    for candidate in _candidates(device):
        if load_backend(candidate).supports(cell, options, device) is None:
            return candidate
    raise ValueError(cast(str, refusal(AUTO, cell, options, device)))


def _candidates(device: torch.device) -> tuple[str, ...]:
    # cuDNN beats a Python loop by far on a GPU; on a CPU the loop with the hand-written backward wins, and both can
    # run anywhere. Under torch.compile only scan traces.
    if device.type == "cuda" and not torch.compiler.is_compiling():
        return ("pad", "scan")
    return ("scan", "pad")
