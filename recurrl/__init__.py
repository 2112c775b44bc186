"""Recurrent policies trained with PPO and GRPO, end to end.

``train`` and ``load`` are the Python interface; they import torch when first used.
"""

import importlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recurrl.api import Run, load, train
    from recurrl.callbacks import Callback

import recurrl.runtime.env_vars  # noqa: F401 (before torchrl, whose import fails on some values)

STARTED = time.monotonic()
"""When this process began to import the package, by ``time.monotonic``: the start of a command's run."""

__version__ = "0.2.0"
__all__ = ["Callback", "Run", "__version__", "load", "train"]

_MODULES = {"Callback": "recurrl.callbacks", "Run": "recurrl.api", "load": "recurrl.api", "train": "recurrl.api"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
