"""Disks of a process's own, which can be full, or not to be written to, without anybody else noticing."""

import functools
import shutil
import subprocess

MOUNT = 'mount -t tmpfs -o size="$1" none "$0" && shift && exec "$@"'


def with_a_disk_of_its_own(folder, size):
    """What to write before a command for it to see an empty disk of that size at the folder; nothing if it can't."""
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNT, folder, size] if _can_be() else []


def with_a_small_disk(folder, size):
    """The same for a test that is about such a disk, and fails without one."""
    command = with_a_disk_of_its_own(str(folder), size)
    assert command, "This test mounts a small disk; let `unshare --map-root-user --mount true` succeed."
    return command


@functools.cache
def _can_be():
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNT, "/dev/shm", "1m", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0
