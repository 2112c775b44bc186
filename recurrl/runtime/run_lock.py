"""Keeps a run directory to one process at a time.

The operating system's lock on a file in the directory is released when its process ends, however that happens, and
works across machines if the network file system supports locks (NFS does; Lustre if mounted with ``flock``). The file
names the holder, and is empty when the run has ended.
"""

import errno
import fcntl
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

_IN_USE = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_MOST_BYTES = 4096

logger = logging.getLogger(__name__)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Locks an existing run directory while the block runs.

    On a file system without locks it logs a warning instead.

    Raises:
        ConfigError: another process has locked it; the message says which.
        OSError: the directory cannot be written to.
    """
    path = run_dir / FILE_NAME
    # Non-blocking, because the path may be a pipe, whose opening waits for a writer.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{path} is not a file, so no run can lock its directory. Remove it.")
        _lock(descriptor, path)
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        holder = f"process {os.getpid()} on {socket.gethostname()} since {since} ({' '.join(sys.argv)})"
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode()[:_MOST_BYTES], 0)
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
            holder = os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace")
            holder = holder if holder.startswith("process ") and holder.isprintable() else "another process"
            raise ConfigError(
                f"{path.parent} is in use by {holder}. Wait until that run has ended, or choose another directory with "
                "hydra.run.dir=..."
            ) from error
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning(
            "The file system of %s does not support locks (%s): a second run could use the directory at the same time.",
            *(path.parent, error.strerror),
        )
