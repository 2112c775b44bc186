"""Errors that end a command, in words that help more than Hydra's."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import HydraException, MissingConfigException

from recurrl.config.keys import check_key
from recurrl.config.plugins import GROUPS, is_custom, names, unknown_choice
from recurrl.errors import ConfigError, RunError
from recurrl.runtime.resources import os_error_message, resource_errors_as_messages


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Ends a command with the message of an error that is addressed to its user, or of a missing resource."""
    try:
        with resource_errors_as_messages():
            yield
    except (ConfigError, RunError) as error:
        sys.exit(f"error: {error}")


def message(error: Exception) -> str:
    """The text to print for an error."""
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        return _missing_choice(str(error.missing_cfg_file), sorted(error.options or ()))
    if unknown_key := re.match(r"Could not override '((?!hydra)[\w.]+)'", str(error)):
        # The key is one of another choice; others were rejected before.
        try:
            check_key(unknown_key[1], ())
        except ConfigError as unknown:
            return str(unknown)
    # Hydra's error for a missing choice is an OSError too.
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        return os_error_message(error)
    # OmegaConf adds lines about its types.
    return str(error).partition("\n    full_key: ")[0]


def _missing_choice(choice: str, known: list[str]) -> str:
    group, _, name = choice.rpartition("/")
    if group == "hydra/launcher" and (extra := name.partition("_")[0]) in ("joblib", "submitit"):
        return f"{group}={name} is not installed. Install it with: pip install 'recurrl[{extra}]'"
    if is_custom(name) and group in GROUPS:
        return (
            f"{group}={name} must be on a command line, not in the defaults of a yaml. Give the yaml the lines "
            f"'{group}:' and '  name: {name}'."
        )
    return str(unknown_choice(group, group, name, known or (names(group) if group in GROUPS else ())))
