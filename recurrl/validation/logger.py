"""The requirements of loggers."""

from __future__ import annotations

import importlib.util

from recurrl.config import TrainConfig
from recurrl.errors import require


def check(config: TrainConfig) -> None:
    """Rejects a logger that is not installed."""
    logger = config.logger
    if logger.name == "tensorboard":
        require(
            importlib.util.find_spec("tensorboard") is not None,
            "logger=tensorboard needs the tensorboard package. Install it with: pip install 'recurrl[tensorboard]'",
        )
