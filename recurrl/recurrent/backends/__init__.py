"""Backends: kernels that run one recurrent layer over a batch of rows, one module or package each.

A backend is a module here, listed in :mod:`recurrl.recurrent.choice`, or a custom object with the attributes of
:class:`Backend`. It runs a single layer in one direction. Stacking, dropout and directions are shared by all backends
and live in :mod:`recurrl.recurrent.layer`.

Shape legend: B rows, T steps, I input size, O output size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import Protocol

import torch
from torch import Tensor

from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.segments import Segments


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


def missing_kernel_reason(backend: str, cell: Cell, linear: type[Cell] | UnionType) -> str | None:
    """Why a backend with kernels for GRU, LSTM and ``linear`` cells cannot run a cell, or None if it can."""
    if cell.TORCH is None and not isinstance(cell, linear):
        return (
            f"backend={backend} has no kernel for the cell {cell.name}, only for gru, lstm, and cells that are linear "
            "in their states. Choose backend=scan."
        )
    if cell.proj_size:
        return (
            f"proj_size={cell.proj_size} is not supported by backend={backend}, whose kernels treat the output as the "
            "state. Choose backend=pad or backend=scan."
        )
    return None
