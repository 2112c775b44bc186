"""Compiling: what the compiler takes whole, and what it needs itself."""

from __future__ import annotations

import torch

from recurrl import compiling
from recurrl.config import NO_CELL, TrainConfig
from recurrl.errors import ConfigError, require
from recurrl.recurrent.backends import AUTO
from recurrl.recurrent.cells import is_hand_written, is_parallel_in_time, load_cell

BACKENDS = (AUTO, "scan", "triton")
"""Those that a layer is compiled with; ``auto`` is ``scan`` then."""


def check(config: TrainConfig) -> None:
    """Refuses to compile without a compiler, and layers that are not compiled whole."""
    if not config.compile:
        return
    reason = compiling.refusal(torch.device(config.device))
    if reason is not None:
        raise ConfigError(reason)
    if config.cell.name == NO_CELL:
        return
    require(
        config.backend.name in BACKENDS,
        f"compile=true is not possible with backend={config.backend.name}: the compiler takes no layer whose course "
        f"depends on where episodes start. Choose one of: {', '.join(BACKENDS)}; or leave compile out.",
    )
    require(
        config.recompute.name == "none" or config.backend.name == "triton",
        f"recompute={config.recompute.name} is not possible with compile=true and backend={config.backend.name}, whose "
        "compiled scan keeps what its backward pass needs. Choose recompute=none, or leave compile out.",
    )
    cell = load_cell(config.cell.name)
    require(
        is_hand_written(cell) or is_parallel_in_time(cell),
        f"compile=true is not possible with cell={config.cell.name}: the derivative of a compiled scan has to be "
        "written by hand, or the cell has to have a parallel form. Leave compile out.",
    )
