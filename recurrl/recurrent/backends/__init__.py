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
from torch.nn import functional

from recurrl.recurrent import precision
from recurrl.recurrent.cells import Cell
from recurrl.recurrent.segments import Segments

AUTO = "auto"
RECOMPUTE = ("none", "full", "chunk")


class LayerWeights(NamedTuple):
    """Parameters of one layer in one direction, in torch's layout; None for those that the layer does not have."""

    w_ih: Tensor
    """``[G, I]``."""
    w_hh: Tensor | None
    """``[G, O]``; None for a cell without a recurrent projection."""
    b_ih: Tensor | None
    b_hh: Tensor | None
    w_hr: Tensor | None = None
    """``[O, H]``, the projection of the output (``proj_size``)."""

    def present(self) -> list[Tensor]:
        """The parameters there are, in torch's order."""
        return [weight for weight in self if weight is not None]


@dataclass(frozen=True)
class Options:
    """What a user may ask of a backend besides the result."""

    recompute: str = "none"
    """``none`` keeps what the backward pass needs; ``full`` computes it again; ``chunk`` a piece at a time."""
    precision: str = "auto"
    """Of matrix products, see :mod:`recurrl.recurrent.precision`."""
    compute_dtype: torch.dtype = torch.float32
    """Of the factors of the recurrent product."""
    hidden_size: int = 0
    """Features of each state; 0 is not known yet."""
    proj_size: int = 0
    """Size of the projected output; 0 is none."""
    fused: bool = True
    """Whether torch's fused kernels may run. Without them, all is Python."""
    chunk_len: int = 0
    """Steps of a piece, for ``chunk``."""


class Backend(Protocol):
    """The interface of a kernel."""

    OWN_PRODUCTS: bool
    """Whether its matrix products take their precision from the options, rather than from torch's settings."""

    supports: Callable[[Cell, Options, torch.device | None], str | None]
    """None when the backend can do what is asked on that device, else a sentence: why not, and what to choose. Without
    a device: whether it could on any.
    """

    sequence: Callable[
        [Cell, Tensor, Segments, tuple[Tensor, ...], LayerWeights, Options], tuple[Tensor, tuple[Tensor, ...]]
    ]
    """``(cell, x_BTI, segments, stored_states_BTX, weights, options) -> (output_BTO, end_states_BTX)``.

    The state that enters a segment's first step is the stored state at that step. ``end_states`` hold each state at
    the last step of every segment, and zero elsewhere.
    """


def step(cell: Cell, weights: LayerWeights, x_gates_BG: Tensor, states_BX: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One step of one layer from the input's projection, in a form that autograd differentiates: the new states."""
    h_gates_BG = None if weights.w_hh is None else functional.linear(states_BX[0], weights.w_hh, weights.b_hh)
    output, *further = cell.activate(x_gates_BG, h_gates_BG, states_BX)
    return (output if weights.w_hr is None else functional.linear(output, weights.w_hr), *further)


@cache
def backend_names() -> tuple[str, ...]:
    """The names of the backends there are, ``auto`` first."""
    return (AUTO, *sorted(module.name for module in pkgutil.iter_modules(__path__)))


# Not functools.cache, which torch.compile does not see through.
_loaded: dict[str, Backend] = {}


def load_backend(name: str) -> Backend:
    """The backend called ``name`` (not ``auto``, which is a choice among them).

    Raises:
        ValueError: there is no such backend.
    """
    if name not in _loaded:
        if name not in backend_names() or name == AUTO:
            raise ValueError(f"There is no recurrent_backend {name!r}. Choose one of: {', '.join(backend_names())}.")
        _loaded[name] = cast(Backend, importlib.import_module(f"{__name__}.{name}"))
    return _loaded[name]


def refusal(name: str, cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Why backend ``name`` cannot do what is asked, or None when it can. ``auto`` can if any of its choices can."""
    if options.recompute not in RECOMPUTE:
        return f"There is no recompute={options.recompute!r}. Choose one of: {', '.join(RECOMPUTE)}."
    if options.recompute == "chunk" and options.chunk_len < 1:
        return (
            f"recompute=chunk computes chunk_len steps again at a time, and chunk_len={options.chunk_len}. Give 1 or "
            "more."
        )
    if name != AUTO:
        return load_backend(name).supports(cell, options, device)
    reasons = [load_backend(candidate).supports(cell, options, device) for candidate in _candidates(device)]
    return None if None in reasons else reasons[0]


def refusal_now(name: str, cell: Cell, options: Options, device: torch.device) -> str | None:
    """As :func:`refusal`, for a backend by name, with torch as it is set now."""
    reason = refusal(name, cell, options, device)
    if reason is None and not load_backend(name).OWN_PRODUCTS:
        reason = precision.disagreement(name, options.precision, device)
    return reason


def candidates(cell: Cell, options: Options, device: torch.device) -> list[str]:
    """The backends that ``auto`` may choose from, the one to prefer first.

    Raises:
        ValueError: none can do what is asked.
    """
    reasons = {name: refusal_now(name, cell, options, device) for name in _candidates(device)}
    found = [name for name, reason in reasons.items() if reason is None]
    if not found:
        raise ValueError(" ".join(filter(None, reasons.values())))
    return found


def _candidates(device: torch.device | None) -> tuple[str, ...]:
    # The compiler takes nothing else whole.
    if torch.compiler.is_compiling():
        return ("scan",)
    # Not triton, before it has run on a GPU.
    if device is None or device.type == "cuda":
        return ("pad", "scan")
    return ("scan", "pad")
