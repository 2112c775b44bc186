"""Recurrent policies trained with PPO, end to end."""

import time

import recurrl.runtime.environment  # noqa: F401 (before torchrl, whose import fails on some values)

STARTED = time.time()
"""When this process began to import the package: the beginning of its first run."""

__version__ = "0.1.0"
