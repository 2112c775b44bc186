"""All the rules of a configuration: of its values, and of the environment and the algorithm that it names."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from recurrl import envs
from recurrl.config import TrainConfig
from recurrl.envs.sources.gymnasium import EXTRAS
from recurrl.validation import check


def check_config(config: TrainConfig) -> None:
    """Rejects what cannot be honoured, before any environment or process is started.

    Raises:
        ConfigError: the message says what was asked, why it can't be, and what to do.
    """
    check(config)
    _find_packages_here(config.env.packages)
    envs.check(config.env)
    if config.algorithm.members_of_a_group is not None:
        envs.check_rows(config.env, config.steps_per_row)


def _find_packages_here(packages: Iterable[str]) -> None:
    """Finds a user's own modules in the current folder, as ``python`` does, where they hide no installed ones."""
    here = str(Path.cwd())
    # Not for those of our extras: in a downloaded folder, a file of such a name is not what anybody asked for.
    if here not in sys.path and any(package.partition(".")[0] not in EXTRAS for package in packages):
        sys.path.append(here)
