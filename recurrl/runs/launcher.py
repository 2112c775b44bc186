"""Calls ``env.launcher``, which some simulators need to run before torch is imported."""

import sys
from functools import cache
from pathlib import Path

from omegaconf import DictConfig

from recurrl.config.composed import value_of
from recurrl.config.plugins import load
from recurrl.errors import ConfigError, require
from recurrl.runs.saved_config import saved_config


def launch(config: DictConfig) -> None:
    """Calls a configuration's ``env.launcher``, if it has one that this process has not called yet.

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
        f"env.launcher={name} must be called before torch is imported, but torch already is. Use the command "
        "line; or call the function first, and leave env.launcher out.",
    )
    load(name, f"env.launcher={name}")()


def launch_saved(run: Path, is_trusted: bool = False) -> None:
    """Calls the launcher of a run that is resumed or loaded.

    Untrusted code is not called, and a missing run is ignored: opening the run rejects both later. The launcher of a
    checkpoint outside its run is not called either, because reading the checkpoint imports torch.

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
