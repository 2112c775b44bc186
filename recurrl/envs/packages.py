"""Imports the packages and modules of environments that a configuration names."""

from __future__ import annotations

import importlib.util

from recurrl.config.plugins import import_own
from recurrl.errors import ConfigError

EXTRAS = {"popgym": "popgym", "minigrid": "minigrid", "ale_py": "atari"}
"""The extras of recurrl, by the package that registers environments."""


def import_package(name: str, asked: str) -> None:
    """Imports a package or module, installed or in the current folder.

    Args:
        name: its dotted name.
        asked: the key and value that name it, for the error.

    Raises:
        ConfigError: it is not installed or cannot be imported; with the command that installs it.
    """
    top = name.partition(".")[0]
    # An extra is never taken from the current folder: in a downloaded one, nobody expects such a file.
    if top in EXTRAS and importlib.util.find_spec(top) is None:
        raise ConfigError(f"{asked} needs the package {top}. Install it with: pip install 'recurrl[{EXTRAS[top]}]'")
    import_own(name, asked)
