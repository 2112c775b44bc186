"""The error that is meant for the person at the keyboard."""

from __future__ import annotations


class ConfigError(ValueError):
    """Something was asked for that cannot be honoured. The message says what, why, and what to do instead.

    The command line prints it as one sentence, without a traceback.
    """


class ReplayError(ConfigError):
    """What the rollout recorded is not what the update would see, so learning would be wrong."""
