"""What the command lines of several measurements have in common."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_threads(parser: argparse.ArgumentParser, default: int) -> None:
    """``--threads``: those that torch computes with."""
    parser.add_argument("--threads", type=int, default=default, help="of torch, each process; default: %(default)s")


def add_output(parser: argparse.ArgumentParser, *files: str) -> None:
    """``--output``: the folder that the files go to."""
    named = " and ".join(files)
    parser.add_argument("--output", type=Path, help=f"folder for {named}, made if need be; default: none is written")


def publish(text: str, folder: Path | None, file: str) -> None:
    """Prints a text that is a table and its notes; where a folder is given, it is a file there too."""
    sys.stdout.write(text)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
