"""The device: one that torch knows, that is here, and that recurrl trains on."""

from __future__ import annotations

import torch

from recurrl.config import TrainConfig
from recurrl.errors import ConfigError, require


def check(config: TrainConfig) -> None:
    """Refuses a device that is not to be had."""
    try:
        device = torch.device(config.device)
    except RuntimeError as error:
        raise ConfigError(
            f"device={config.device} is not a device torch knows. Choose auto, cpu, cuda or cuda:0."
        ) from error
    require(
        device.type in ("cpu", "cuda"),
        f"device={config.device} is a kind of device that recurrl does not train on. Choose auto, cpu, cuda or cuda:0.",
    )
    if device.type == "cuda":
        require(
            torch.cuda.is_available(),
            f"device={config.device} was asked for, but torch {torch.__version__} finds no CUDA device here. Choose "
            "device=cpu, or install a CUDA build of torch on a machine with a GPU.",
        )
        require(
            (device.index or 0) < torch.cuda.device_count(),
            f"device={config.device} was asked for, but there are {torch.cuda.device_count()} CUDA devices, numbered "
            "from 0.",
        )
