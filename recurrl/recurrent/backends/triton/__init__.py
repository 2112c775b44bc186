"""Room for the fused CUDA kernels. Until they are here, the backend says so."""

from __future__ import annotations

from typing import NoReturn

import torch

from recurrl.recurrent.backends import Options
from recurrl.recurrent.cells import Cell

_REASON = (
    "backend=triton has no kernels yet in this version of recurrl. Choose backend=auto, or backend=pad on a GPU and "
    "backend=scan on a CPU."
)


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Nothing, so far."""
    return _REASON


def sequence(*args: object) -> NoReturn:
    """Refuses.

    Raises:
        ValueError: always.
    """
    raise ValueError(_REASON)
