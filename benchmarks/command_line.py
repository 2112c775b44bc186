"""Command-line options shared by several benchmarks."""

import argparse
import sys
from pathlib import Path


def add_threads(parser: argparse.ArgumentParser, default: int) -> None:
    """Adds ``--threads``, for torch."""
    parser.add_argument("--threads", type=int, default=default, help="torch threads per process; default: %(default)s")


def add_output(parser: argparse.ArgumentParser, *files: str) -> None:
    """Adds ``--output``, the folder for result files."""
    named = " and ".join(files)
    parser.add_argument("--output", type=Path, help=f"folder for {named}, created if missing; default: write no files")


def publish(text: str, folder: Path | None, file: str) -> None:
    """Prints the text and, with a folder, writes it to a file there."""
    sys.stdout.write(text)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
