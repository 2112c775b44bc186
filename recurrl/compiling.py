"""The loss of an algorithm as a program that ``torch.compile`` makes of it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

from recurrl.errors import ConfigError
from recurrl.recurrent import prepare_for_compile

logger = logging.getLogger(__name__)

Loss = Callable[[TensorDictBase], Any]


def compiled(loss: nn.Module, device: torch.device) -> Loss:
    """A loss that is compiled whole at its first call, and its gradient at the first backward pass.

    Minibatches have to be of one shape: another one is compiled anew.

    Raises:
        ConfigError: this version of torch cannot compile a scan on ``device``.
    """
    # What an earlier job of a sweep compiled counts towards torch's limit of programs for one function.
    torch.compiler.reset()
    try:
        prepare_for_compile(device)
    except RuntimeError as error:
        raise ConfigError(f"compile=true is not possible here: {error} Leave compile out.") from error
    logger.info("The first update compiles the loss, which takes half a minute or so.")
    made: Loss = torch.compile(loss.forward, fullgraph=True, dynamic=False)
    return made


def refusal(device: torch.device) -> str | None:
    """Why nothing can be compiled for a device here, and what to do; None where it can."""
    compiler = os.environ.get("CXX", "g++")
    if device.type != "cpu" or shutil.which(compiler) is not None:
        return None
    return (
        f"compile=true needs a C++ compiler, and {compiler} is not on the path. Install one (apt-get install g++), "
        "name another in the environment variable CXX, or leave compile out."
    )
