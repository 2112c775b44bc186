"""Keeps a run directory to one process at a time.

The lock is the operating system's, on a file in the directory: it ends with the process that holds it, however that
ends, and works across machines wherever the network file system passes locks on (NFS does; Lustre if mounted with
``flock``). The file says who holds it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from recurrl.errors import ConfigError

FILE_NAME = "run.lock"

_HELD = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_MOST_BYTES = 4096

logger = logging.getLogger(__name__)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Holds the lock of a run directory, which exists, while the block runs.

    On a file system without locks nothing is held, and a warning says so.

    Raises:
        ConfigError: another process holds it; the message says which.
        OSError: the directory cannot be written to.
    """
    path = run_dir / FILE_NAME
    descriptor = _acquired(path)
    try:
        yield
    finally:
        # Removed while still held: whoever opened the file before sees in `_acquired` that it is gone.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquired(path: Path) -> int:
    """The descriptor of the locked file. Closing any descriptor of that file would release the lock."""
    while True:
        # Without blocking: what is there may be a pipe, whose opening waits for a writer.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"{path} is not a file, so no run can lock its directory. Remove it.")
            _lock(descriptor, path)
            if _is_at(path, descriptor):
                _write_holder(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # Its holder removed the file after it was opened here.
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        # POSIX locks, because child processes do not inherit them: one that outlives a killed run holds nothing.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            raise ConfigError(
                f"{path.parent} is in use by {_holder(descriptor)}. Wait until that run has ended, or give this one a "
                "directory of its own with hydra.run.dir=..."
            ) from error
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning(
            "The file system of %s has no locks (%s): nothing keeps a second run out of the directory.",
            *(path.parent, error.strerror),
        )


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write_holder(descriptor: int) -> None:
    holder = {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        "command": " ".join(sys.argv),
    }
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode()[:_MOST_BYTES], 0)


def _holder(descriptor: int) -> str:
    try:
        found = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
        return f"process {found['process']} on {found['host']} since {found['since']} ({found['command']})"
    except (ValueError, TypeError, KeyError):
        # The other process has taken the lock, and has not yet written who it is.
        return "another process"
