"""The directory of a run, as those find it who go on from it, evaluate it, or look what it was."""

from __future__ import annotations

from pathlib import Path

from recurrl.errors import ConfigError

CONFIG_FILE = "config.yaml"
"""The run's whole configuration, that of the run it resumed included."""


def run_directory_of(path: Path) -> Path:
    """The run directory a resume or evaluation path points into: itself, or the one its checkpoint lies in.

    Raises:
        ConfigError: the path is no run directory and no checkpoint of one.
    """
    for candidate in (path, path.parent.parent):
        if (candidate / CONFIG_FILE).is_file():
            return candidate
    what = "does not exist" if not path.exists() else "is neither a run directory nor a checkpoint in one"
    raise ConfigError(
        f"{path} {what}. Give a directory that a training run wrote (it holds config.yaml and checkpoints/), or "
        "one of the checkpoints in it."
    )
