"""Marks the saved configurations that this user's own runs wrote: their code needs no further permission.

For each configuration that names code, a folder of the user holds an empty file, named by the SHA-256 of the
configuration and its folder's path. So one that was edited, copied or moved, or came from elsewhere, has no such file.
"""

import hashlib
import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf


def remember(config: DictConfig, run_dir: Path) -> bool:
    """Records that a run of this user saves a configuration in its directory; False if that cannot be recorded."""
    try:
        note = _note(config, run_dir)
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        note.touch(mode=0o600)
    except (OSError, RuntimeError):
        return False
    return True


def is_own(config: DictConfig, file: Path) -> bool:
    """True if a run of this user wrote a configuration's file, at this path and with the values of ``config``."""
    try:
        return _note(config, file.parent).stat().st_uid == os.getuid()
    except (OSError, RuntimeError):
        return False


def _note(config: DictConfig, run_dir: Path) -> Path:
    """The file that marks a configuration as this user's own.

    Raises:
        RuntimeError: the user has no home.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = state if state.is_absolute() else Path("~/.local/state").expanduser()
    # A path holds no NUL, so no two pairs of path and text give the same bytes.
    text = OmegaConf.to_yaml(config).encode(errors="surrogatepass")
    digest = hashlib.sha256(os.fsencode(run_dir.resolve()) + b"\0" + text).hexdigest()
    return state / "recurrl" / "own_runs" / digest
