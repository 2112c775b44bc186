"""Where metrics go: what a destination needs, and what only one of them has."""

from __future__ import annotations

import importlib.util

from recurrl.config import TrainConfig
from recurrl.errors import require


def check(config: TrainConfig) -> None:
    """Refuses a destination that is not installed, and options of another."""
    logger = config.logger
    if logger.name == "tensorboard":
        require(
            importlib.util.find_spec("tensorboard") is not None,
            "logger=tensorboard needs the tensorboard package. Install it with: pip install 'recurrl[tensorboard]'",
        )
    if logger.name == "wandb":
        return
    for key in ("project", "mode", "id"):
        value = getattr(logger, key)
        require(
            value is None,
            f"logger.{key}={value} is an option of logger=wandb, and this run has logger={logger.name}. Leave it out, "
            "or choose logger=wandb.",
        )
