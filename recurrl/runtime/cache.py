"""The folder for what is kept between runs on a machine and can be made again."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "RECURRL_CACHE_DIR"


def cache_folder() -> Path:
    """``$RECURRL_CACHE_DIR``, ``$XDG_CACHE_HOME/recurrl`` or ``~/.cache/recurrl``; it need not exist."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recurrl"
