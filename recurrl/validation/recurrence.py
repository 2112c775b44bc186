"""The recurrent layer: its backend's support for the device and the options, and what needs a cell."""

from __future__ import annotations

import torch

from recurrl.config import NO_CELL, TrainConfig
from recurrl.config.plugins import factory
from recurrl.errors import ConfigError, require
from recurrl.recurrent.backends import Options, refusal


def check(config: TrainConfig) -> None:
    """Rejects options that the backend does not support, and a recurrent critic without a cell."""
    device = torch.device(config.device)
    reason = None
    if config.cell.name != NO_CELL:
        options = Options(
            recompute=config.recompute.name,
            chunk_len=config.recompute.chunk_len,
            precision=config.precision.name,
        )
        reason = refusal(config.backend.name, factory("cell", config.cell.name)(config.cell), options, device)
    if reason is not None:
        raise ConfigError(reason)
    require(
        config.algorithm.critic_kind != "recurrent" or config.cell.name != NO_CELL,
        "algorithm.critic=recurrent needs a cell, but cell=none. Choose a cell, or algorithm.critic=feedforward.",
    )
