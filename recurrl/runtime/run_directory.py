"""The directory of a run: finding it, checking it, reading its files safely, and locking it."""

import errno
import fcntl
import logging
import os
import re
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from recurrl.errors import ConfigError, require

CONFIG_FILE = "config.yaml"
"""The run's whole configuration, including that of the run it resumed."""
SUMMARY, METRICS, CURVE = "summary.json", "metrics.csv", "learning_curve.png"
CHECKPOINTS = "checkpoints"
REPLACED = "replaced"
"""The folder of checkpoints that are later than the one from which the run was continued."""
VIDEOS, EXPORTS = "video", "export"
"""Folders that commands write after the run."""

LOG = "recurrl.log"
FILES = (CONFIG_FILE, SUMMARY, METRICS, CURVE, LOG)
FOLDERS = (CHECKPOINTS, REPLACED, "tensorboard", "wandb", ".hydra")
"""Entries that a run writes. A folder may be a symbolic link, for example to another disk; files and ``.hydra``, whose
files another program may have written, may not.
"""

LOCK = "run.lock"
_IN_USE = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_MAX_LOCK_BYTES = 4096
"""No more than this is read from the lock's file."""
_HOLDER = "process "
"""The lock's file begins with this while a run holds it, and after a run that was killed."""

PREFIX = "frames_"
"""A checkpoint's name is this and its frames."""
MANIFEST = "manifest.json"
"""A checkpoint's values, such as its metrics, the checksums of its states, and a checksum of itself."""

_KEYS = "hydra.run.dir=... (hydra.sweep.dir in a sweep, run_dir in Python)"

logger = logging.getLogger(__name__)


def run_directory_of(path: Path) -> Path:
    """The run directory of a path: the path itself, or the directory of the run whose checkpoint it is.

    Raises:
        ConfigError: the path is neither a run directory nor a checkpoint in one.
    """
    exists = os.path.lexists(path)
    if os.path.lexists(path / CONFIG_FILE):
        return path
    if exists and (holder := holder_of(path)):
        return holder
    what = "is neither a run directory nor a checkpoint in one" if exists else "does not exist"
    if checkpoints := sorted(each.name for each in path.parent.glob(f"{PREFIX}*")):
        what += f". Its folder has {', '.join(checkpoints)}"
    raise ConfigError(
        f"{path} {what}. Pass a run directory (it holds config.yaml and checkpoints/), or one of its checkpoints."
    )


def holder_of(path: Path) -> Path | None:
    """The directory of the run that a checkpoint is in; None for one that was moved or copied elsewhere."""
    folder = path.absolute().parent
    return folder.parent if folder.name == CHECKPOINTS and os.path.lexists(folder.parent / CONFIG_FILE) else None


def read_text(path: Path, max_bytes: int | None = None) -> str:
    """The text of a regular file. Reading never blocks, as a pipe would.

    Raises:
        ConfigError: the file is missing, not a regular file, larger than ``max_bytes``, or not UTF-8.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is not a regular file.")
        if max_bytes is not None and status.st_size > max_bytes:
            raise ConfigError(f"{path} has {status.st_size} bytes, but runs never write more than {max_bytes}.")
        return path.read_bytes().decode("utf-8-sig")  # editors may add the mark
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text.") from error


def looks_like_checkpoint(path: Path) -> bool:
    """True if a path has the name and the parts of a checkpoint, intact or damaged."""
    return (
        re.fullmatch(rf"{PREFIX}[0-9]+", path.name) is not None
        and path.is_dir()
        and any(os.path.lexists(path / part) for part in (MANIFEST, "state-policy.pt"))
    )


def check_unused(run_dir: Path, is_resumed: bool) -> None:
    """Rejects a directory that holds another run, or something that is in the way of the run's files.

    Args:
        run_dir: the directory of a run that begins.
        is_resumed: true if the run continues the one in the directory.

    Raises:
        ConfigError: the message names the offending path.
    """
    checkpoints = run_dir / CHECKPOINTS
    places: list[tuple[Path, str, Callable[[Path], bool]]] = [
        *((run_dir / name, "a regular file", Path.is_file) for name in FILES),
        *((run_dir / name, "a folder", Path.is_dir) for name in FOLDERS),
        *((path, "a checkpoint", looks_like_checkpoint) for path in checkpoints.glob(f"{PREFIX}{12 * '[0-9]'}")),
    ]
    for path, kind, fits in places:
        may_be_link = path.name in FOLDERS and path.name != ".hydra"
        require(
            not os.path.lexists(path) or (fits(path) and (may_be_link or not path.is_symlink())),
            f"{path} is a link or is not {kind}, but the run must write there. Move it away, or choose another "
            f"directory with {_KEYS}.",
        )
    is_run = any(map(looks_like_checkpoint, checkpoints.glob("*"))) or (run_dir / METRICS).exists()
    for path in (run_dir / CONFIG_FILE, run_dir / SUMMARY, run_dir / CURVE):
        # A run that ended before its first iteration has left .hydra.
        require(is_run or (run_dir / ".hydra").is_dir() or not os.path.lexists(path), _foreign(path))
    require(
        is_resumed or not is_run,
        f"{run_dir} already holds another run. Choose another directory with {_KEYS}, or continue that run with "
        f"resume={run_dir} (resume=auto in a sweep).",
    )


def _foreign(path: Path) -> str:
    """The error message for a file that the run would overwrite."""
    return (
        f"{path} was not written by a run, and this run would overwrite it. Move it away, or choose another directory "
        f"with {_KEYS}."
    )


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Locks an existing run directory for this process while the block runs.

    The lock is the operating system's, on a file in the directory: it is released when the process ends, however that
    happens, and works across machines if the network file system supports locks (NFS does; Lustre if mounted with
    ``flock``). If it does not, a warning is logged. The file names the holder, and is empty when the run has ended.

    Raises:
        ConfigError: another process has locked it, which the message names; or a run did not write the lock's file.
        OSError: the directory cannot be written to.
    """
    path = run_dir / LOCK
    # Non-blocking, because the path may be a pipe, whose opening waits for a writer.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{path} is not a file, so no run can lock its directory. Remove it.")
        _lock(descriptor, path)
        require(os.pread(descriptor, len(_HOLDER), 0) in (b"", _HOLDER.encode()), _foreign(path))
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        holder = f"{_HOLDER}{os.getpid()} on {socket.gethostname()} since {since} ({' '.join(sys.argv)})"
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode()[:_MAX_LOCK_BYTES], 0)
        try:
            yield
        finally:
            os.truncate(descriptor, 0)
    finally:
        # Closing any descriptor of the file releases the lock.
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        # POSIX locks are not inherited, so a child that outlives a killed run does not keep the lock.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _IN_USE:
            # The other process may not have written its name yet.
            holder = os.pread(descriptor, _MAX_LOCK_BYTES, 0).decode(errors="replace")
            holder = holder if holder.startswith(_HOLDER) and holder.isprintable() else "another process"
            raise ConfigError(
                f"{path.parent} is in use by {holder}. Wait until that run has ended, or choose another directory with "
                f"{_KEYS}."
            ) from error
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning(
            "The file system of %s does not support locks (%s): a second run could use the directory at the same time.",
            *(path.parent, error.strerror),
        )
