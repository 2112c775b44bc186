"""Atomic replacement of files."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

UNFINISHED = ".recurrl-unfinished-"
_OURS = re.compile(rf"{re.escape(UNFINISHED)}.+-[0-9a-f]{{32}}", re.DOTALL)
"""The names of unfinished files and folders. Nothing else is ever cleaned up."""


def unfinished(path: Path) -> Path:
    """A new name in the folder of ``path``, for a file or folder that replaces ``path`` once complete."""
    return path.with_name(f"{UNFINISHED}{path.name}-{uuid.uuid4().hex}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the name of a file to write, which replaces ``path`` when the block ends.

    Readers of ``path`` see the old or the new contents, never a part, even after a crash. If the block raises, the old
    contents stay. A symbolic link itself is replaced, not its target.

    Raises:
        OSError: the directory does not exist, cannot be written to, or is full.
    """
    temporary = unfinished(path)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: Path) -> Iterator[TextIO]:
    """Opens a text file that replaces ``path`` when the block ends, see :func:`replacing`."""
    with replacing(path) as temporary, temporary.open("x", encoding="utf-8", newline="") as file:
        yield file


def sync(path: Path) -> None:
    """Flushes a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Removes the files of interrupted writes in a folder, such as those of a killed process."""
    for path in unfinished_in(folder):
        if path.is_file() and not path.is_symlink():
            path.unlink()


def unfinished_in(folder: Path) -> list[Path]:
    """The paths in a folder whose names :func:`unfinished` made."""
    return [path for path in folder.glob(f"{UNFINISHED}*") if _OURS.fullmatch(path.name)]
