"""The errors that are meant for the person at the keyboard."""

from __future__ import annotations


class ConfigError(ValueError):
    """Something was asked for that cannot be honoured. The message says what, why, and what to do instead.

    The command line prints it as one sentence, without a traceback.
    """


def require(condition: bool, message: str) -> None:
    """Refuses what was asked for unless ``condition`` holds.

    Raises:
        ConfigError: with the message.
    """
    if not condition:
        raise ConfigError(message)


class ReplayError(ConfigError):
    """What the rollout recorded is not what the update would see, so learning would be wrong."""


class RunError(RuntimeError):
    """A run cannot go on; the message says why and what to do.

    The command line prints it as one sentence, without a traceback; with HYDRA_FULL_ERROR=1 with one.
    """


class NonFiniteError(RunError):
    """Learning yields no numbers any more."""


class EnvironmentFaultError(RunError):
    """An environment does what it must not; the message says which one, and at which of its steps."""
