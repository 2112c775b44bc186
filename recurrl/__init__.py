"""Recurrent policies trained with PPO, end to end."""

import time

STARTED = time.time()
"""When this process began to import the package: the beginning of its first run."""

__version__ = "0.1.0"
