"""Compiles a loss with ``torch.compile``."""

import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from hoptorch.scan import ensure_scan_backward

logger = logging.getLogger(__name__)
Loss = Callable[..., Any]


def compiled(loss: Loss, device: torch.device) -> Loss:
    """A loss that is compiled as one graph at its first call, and its gradient at the first backward pass.

    Each shape of a minibatch is compiled separately.
    """
    # Step-only cells run through hoptorch's scan, whose availability cannot be checked while tracing.
    ensure_scan_backward(device)
    # Earlier jobs of a sweep count towards torch's limit of compiled variants per function.
    torch.compiler.reset()
    logger.info("The first update compiles the loss, which takes ten seconds or more.")
    compiled_loss: Loss = torch.compile(loss, fullgraph=True, dynamic=False)
    return compiled_loss


def unsupported(device: torch.device) -> str | None:
    """The reason why code for a device cannot be compiled here, and what to do; None if it can."""
    compiler = os.environ.get("CXX", "g++")
    if device.type != "cpu" or shutil.which(compiler) is not None:
        return None
    return (
        f"compile=true needs a C++ compiler, but {compiler} is not on PATH. Install one (apt-get install g++), name "
        "another in the environment variable CXX, or leave compile out."
    )
