"""The requirements of ``compile=true``."""

from __future__ import annotations

import torch

from recurrl.config import TrainConfig
from recurrl.config.plugins import is_own
from recurrl.errors import ConfigError, require
from recurrl.learning import compiling
from recurrl.policy.build import make_cell
from recurrl.recurrent.backends import AUTO
from recurrl.recurrent.cell import is_parallel_in_time
from recurrl.recurrent.gated import is_hand_written

BACKENDS = (AUTO, "native", "scan", "triton")
"""Backends that can be compiled; ``auto`` then means ``native``, or ``scan`` where there is none."""


def check(config: TrainConfig) -> None:
    """Rejects compiling without a compiler, and layers that cannot be compiled as one graph."""
    if not config.compile:
        return
    reason = compiling.refusal(torch.device(config.device))
    if reason is not None:
        raise ConfigError(reason)
    cell = make_cell(config.cell)
    if cell is None:
        return
    require(
        config.backend.name in BACKENDS or is_own(config.backend.name),
        f"compile=true is not possible with backend={config.backend.name}, whose control flow depends on where "
        f"episodes start. Choose one of: {', '.join(BACKENDS)}; or leave compile out.",
    )
    require(
        config.recompute.name == "none" or config.backend.name not in (AUTO, "scan"),
        f"recompute={config.recompute.name} is not possible with compile=true and backend={config.backend.name}, whose "
        "compiled scan stores what its backward pass needs. Choose recompute=none, or leave compile out.",
    )
    require(
        is_hand_written(cell) or is_parallel_in_time(cell),
        f"compile=true is not possible with cell={config.cell.name}: compiling needs a cell with a hand-written "
        "derivative or a parallel form. Leave compile out.",
    )
