"""Checkpoints whose files a test has changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recurrl.checkpoint import files


def resealed(path: Path, change: Callable[[dict[str, Any]], Any] = lambda _: None) -> None:
    """Changes a checkpoint's manifest, and replaces its checksums by those that fit its files."""
    manifest = json.loads((path / files.MANIFEST).read_text(encoding="utf-8"))
    del manifest["sha256"]
    manifest["checksums"] = {file.name: files._checksum(file) for file in path.glob("state-*.pt")}
    change(manifest)
    (path / files.MANIFEST).write_text(files._sealed(manifest), encoding="utf-8")
