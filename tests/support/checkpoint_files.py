"""Checkpoints whose files a test has changed, and what a stranger may put into them."""

import json
import os

from recurrl.checkpoint import files


def resealed(path, change=lambda _: None):
    """Changes a checkpoint's manifest, and replaces its checksums by those that fit its files."""
    manifest = json.loads((path / files.MANIFEST).read_text(encoding="utf-8"))
    del manifest["sha256"]
    manifest["checksums"] = {file.name: files._checksum(file) for file in path.glob("state-*.pt")}
    change(manifest)
    (path / files.MANIFEST).write_text(files._sealed(manifest), encoding="utf-8")


class Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)
