"""Errors that end a command, in words of our own where Hydra's would not help."""

from __future__ import annotations

import difflib

from hydra.errors import HydraException, MissingConfigException

from recurrl.config.plugins import GROUPS, ROOMS, is_own, names

RENAMED_CHOICES = {
    "env/cartpole_novel": "cartpole_no_velocity",
    "env/pendulum_novel": "pendulum_no_velocity",
    "env/mountaincar_continuous_novel": "mountaincar_continuous_no_velocity",
    "experiment/pendulum_novel": "pendulum_no_velocity",
}


def message(error: Exception) -> str:
    """The text to print for an error."""
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        return _no_such_choice(str(error.missing_cfg_file), sorted(error.options or ()))
    # Hydra's error for a missing choice is an OSError too.
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        from recurrl.runtime.resources import os_error_message  # imports torch, which typos need not wait for

        return os_error_message(error)
    return str(error)


def _no_such_choice(asked: str, found: list[str]) -> str:
    group, _, name = asked.rpartition("/")
    if now := RENAMED_CHOICES.get(asked):
        return f"{group}={name} is now {group}={now}. Give {group}={now}."
    if is_own(name):
        return (
            f"{group}={name} can be given on a command line, but not in the defaults of a yaml. Give the yaml the lines "
            f"'{group}:' and '  name: {name}' instead."
        )
    known = found or (list(names(group)) if group in GROUPS else [])
    near = difflib.get_close_matches(name, known, n=1)
    guess = f" Did you mean {group}={near[0]}?" if near else ""
    own = ", or package.module:Name for one of your own" if group in ROOMS else ""
    return f"{group}={name} does not exist.{guess} Choose one of: {', '.join(known)}{own}."
