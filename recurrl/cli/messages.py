"""What the commands share: printing a result, or the error that ends one, and help."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from recurrl.errors import ConfigError, RunError, resource_errors_as_messages
from recurrl.runtime.signals import Interrupted

TRUST_HELP = "import the packages that the run's configuration names, which runs their code"
"""The help of ``--trust-packages``."""


def print_result(parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], str]) -> None:
    """Parses the command line, and prints what a command returns for it, or the error that ends it."""
    arguments = parser.parse_intermixed_args()
    with errors_as_messages():
        sys.stdout.write(command(arguments))


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Ends a command with the message of an error that is addressed to its user, or of a missing resource.

    With ``HYDRA_FULL_ERROR=1`` it ends with the traceback. An interrupted command ends with the signal's exit code.
    """
    try:
        with resource_errors_as_messages():
            yield
    except (ConfigError, RunError) as error:
        if "HYDRA_FULL_ERROR" in os.environ:
            raise
        sys.exit(f"error: {error}")
    except KeyboardInterrupt as stop:
        sys.exit(stop.exit_code if isinstance(stop, Interrupted) else 128 + signal.SIGINT)
