"""The requirements and options of each logger."""

from __future__ import annotations

import importlib.util

from recurrl.config import TrainConfig
from recurrl.errors import require


def check(config: TrainConfig) -> None:
    """Rejects a logger that is not installed, and options of another one."""
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
            f"logger.{key}={value} is an option of logger=wandb, but this run has logger={logger.name}. Leave it out, "
            "or choose logger=wandb.",
        )
