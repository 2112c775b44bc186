"""The recurrent layer: its backend's support for the device and the options, and what needs a cell."""

from __future__ import annotations

import torch

from recurrl.config import TrainConfig
from recurrl.errors import ConfigError, require
from recurrl.policy.build import make_backend, make_cell
from recurrl.recurrent.backends import Options, refusal


def check(config: TrainConfig) -> None:
    """Rejects options that the backend does not support, and a recurrent critic without a cell."""
    cell = make_cell(config.cell)
    if cell is not None:
        options = Options(
            recompute=config.recompute.name,
            chunk_len=config.recompute.chunk_len,
            precision=config.precision.name,
        )
        reason = refusal(make_backend(config.backend), cell, options, torch.device(config.device))
        if reason is not None:
            raise ConfigError(reason)
    require(
        config.algorithm.critic_kind != "recurrent" or cell is not None,
        "algorithm.critic=recurrent needs a cell, but cell=none. Choose a cell, or algorithm.critic=feedforward.",
    )
