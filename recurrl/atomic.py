"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_SUFFIX = ".tmp"


@contextmanager
def atomic_write(path: Path) -> Iterator[TextIO]:
    """Opens a text file that takes the place of ``path`` when the block ends.

    Whoever reads ``path`` meanwhile, or after a crash, finds the old contents or the new ones, never a part. When the
    block raises, the old contents stay.

    Raises:
        OSError: the directory does not exist, cannot be written to, or is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_SUFFIX}")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Removes what writes left in a folder that did not end, such as those of a killed process."""
    for temporary in folder.glob(f".*{_SUFFIX}"):
        temporary.unlink()
