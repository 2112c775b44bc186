"""Calls what a simulator needs before torch is imported, ``env.launcher``."""

import sys
from functools import cache
from pathlib import Path

from omegaconf import DictConfig

from recurrl.config.composed import value_of
from recurrl.config.plugins import load
from recurrl.errors import ConfigError, require
from recurrl.runs.saved_config import saved_config


def launch(config: DictConfig) -> None:
    """Calls the function that a configuration names, if it names one that this process has not called.

    Raises:
        ConfigError: there is no such function, or torch is imported.
    """
    name = value_of(config, "env.launcher")
    if name is not None:
        _call(str(name))


@cache
def _call(name: str) -> None:
    require(
        "torch" not in sys.modules,
        f"env.launcher={name} must be called before torch is imported, and it is. Use the command line; or call the "
        "function first, and leave env.launcher out.",
    )
    load(name, f"env.launcher={name}")()


def launch_saved(run: Path, is_trusted: bool = False) -> None:
    """Calls the launcher of a run that is resumed or loaded.

    Untrusted code is not called: opening rejects the run, as it does one that does not exist. Nor is code that only a
    checkpoint outside its run names, because reading that imports torch.

    Args:
        run: its directory, or a checkpoint.
        is_trusted: trust the configuration, whoever wrote it.

    Raises:
        ConfigError: there is no such function, or torch is imported.
    """
    try:
        config, _, is_own = saved_config(run)
    except ConfigError:
        return
    if is_trusted or is_own:
        launch(config)
