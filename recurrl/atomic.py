"""Files that are replaced whole or not at all."""

from __future__ import annotations

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
    """A new name beside ``path``, for what takes its place once it is whole."""
    return path.with_name(f"{UNFINISHED}{path.name}-{uuid.uuid4().hex}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives the name of a file to write, which takes the place of ``path`` when the block ends.

    Whoever reads ``path`` meanwhile, or after a crash, finds the old contents or the new ones, never a part. When the
    block raises, the old contents stay. A symbolic link is replaced itself, not what it points to.

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
    """Opens a text file that takes the place of ``path`` when the block ends, see :func:`replacing`."""
    with replacing(path) as temporary, temporary.open("x", encoding="utf-8", newline="") as file:
        yield file


def sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Removes the files of writes in a folder that did not end, such as those of a killed process."""
    for path in unfinished_in(folder):
        if path.is_file() and not path.is_symlink():
            path.unlink()


def unfinished_in(folder: Path) -> list[Path]:
    """The paths in a folder that have a name by :func:`unfinished`."""
    return [path for path in folder.glob(f"{UNFINISHED}*") if _OURS.fullmatch(path.name)]
