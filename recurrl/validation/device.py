"""The device: known to torch, present, and supported."""

from __future__ import annotations

import torch

from recurrl.config import TrainConfig
from recurrl.errors import ConfigError, require


def check(config: TrainConfig) -> None:
    """Rejects an unavailable device."""
    try:
        device = torch.device(config.device)
    except RuntimeError as error:
        raise ConfigError(f"device={config.device} is not a torch device. Choose auto, cpu, cuda or cuda:0.") from error
    require(
        device.type in ("cpu", "cuda"),
        f"device={config.device} is not supported for training. Choose auto, cpu, cuda or cuda:0.",
    )
    if device.type == "cuda":
        require(
            torch.cuda.is_available(),
            f"device={config.device} was requested, but torch {torch.__version__} finds no CUDA device. Choose "
            "device=cpu, or install a CUDA build of torch on a machine with a GPU.",
        )
        require(
            (device.index or 0) < torch.cuda.device_count(),
            f"device={config.device} was requested, but there are {torch.cuda.device_count()} CUDA devices, numbered "
            "from 0.",
        )
