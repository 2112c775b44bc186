"""Keeps a run directory to one process at a time.

The operating system's lock on a file in the directory is released when its process ends, however that happens, and
works across machines if the network file system supports locks (NFS does; Lustre if mounted with ``flock``). The file
names the holder.
"""

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
    """Holds the lock of an existing run directory while the block runs.

    On a file system without locks it logs a warning instead.

    Raises:
        ConfigError: another process holds it; the message says which.
        OSError: the directory cannot be written to.
    """
    path = run_dir / FILE_NAME
    descriptor = _acquired(path)
    try:
        yield
    finally:
        # Removed while still held: a process that has opened it sees in `_acquired` that it is gone.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquired(path: Path) -> int:
    """The descriptor of the locked file. Closing any descriptor of that file would release the lock."""
    while True:
        # Non-blocking, because the path may be a pipe, whose opening waits for a writer.
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
        # POSIX locks are not inherited, so a child that outlives a killed run does not hold the lock.
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
            "The file system of %s does not support locks (%s): a second run could use the directory at the same time.",
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
        # The other process holds the lock but has not written its name yet.
        return "another process"
