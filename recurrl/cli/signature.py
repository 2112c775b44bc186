"""Signs saved configurations, so that custom code named by the user's own runs loads without asking.

The last line of a ``config.yaml`` that names code is an HMAC-SHA256 of the configuration and its folder's path, with a
key that only this user can read. So it is not valid once the file was edited, moved or copied, nor for another user.
"""

import hmac
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from recurrl.runtime.atomic import unfinished
from recurrl.runtime.run_directory import read_text

_BYTES = 32
_LINE = re.compile(r"^# signature, valid for this user and folder: ([0-9a-f]{64})\n\Z", re.MULTILINE)


def signature_line(config: DictConfig, run_dir: Path) -> str:
    """The last line of the file that holds ``config``; empty if there is no place for a private key."""
    key = _key(make=True)
    return "" if key is None else f"# signature, valid for this user and folder: {_signature(key, config, run_dir)}\n"


def is_signed(config: DictConfig, source: Path) -> bool:
    """True if a run of this user wrote the file ``source``, where it is and with the values of ``config``.

    Args:
        config: what was read from the file, unchanged.
        source: a configuration's file; a checkpoint is never signed.
    """
    key = _key()
    return key is not None and hmac.compare_digest(signature_in(source), _signature(key, config, source.parent))


def signature_in(source: Path) -> str:
    """The signature at the end of a file, valid or not; empty without one."""
    match = _LINE.search(read_text(source)) if source.is_file() else None
    return match[1] if match else ""


def _signature(key: bytes, config: DictConfig, run_dir: Path) -> str:
    # A path holds no NUL, so no two pairs of path and text give the same bytes.
    text = OmegaConf.to_yaml(config).encode(errors="surrogatepass")
    return hmac.new(key, os.fsencode(run_dir.resolve()) + b"\0" + text, "sha256").hexdigest()


def _key(make: bool = False) -> bytes | None:
    """This user's key; None if there is none, or another user could read or has written it."""
    folder = os.environ.get("XDG_STATE_HOME", "")
    folder = folder if os.path.isabs(folder) else os.path.expanduser("~/.local/state")
    path = Path(folder) / "recurrl" / "key"
    if not path.is_absolute():  # the user has no home
        return None
    try:
        if make and not path.exists():
            _write_key(path)
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status, key = os.fstat(file.fileno()), file.read(_BYTES + 1)
    except OSError:
        return None
    is_private = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return key if is_private and len(key) == _BYTES else None


def _write_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = unfinished(path)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
        # A link does not replace the key of a process that was faster.
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
