"""Runs commands on a disk with ever more space, and prints the outcome of each. The disk is the process's own.

Usage: full_disk.py FOLDER FREE_KIB,... ARGUMENT...
"""

import errno
import json
import os
import shutil
import sys
import threading
from pathlib import Path

from commands import run_in_process

from recurrl.checkpoint import files
from recurrl.cli import train as train_command

CHUNK = 1024


def leave_free(disk, kib):
    """Fills a disk up to the last ``kib`` KiB, and returns what makes space again."""
    filler = disk / "filler"
    free = shutil.disk_usage(disk).free
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - kib * CHUNK)
    return filler.unlink


def train(arguments, run):
    """What a run came to, and in which state the files are."""
    outcome = run_in_process(train_command.main, "recurrl-train", arguments, Path("/"))
    checkpoints, intact = (found(run / "checkpoints") for found in (files.checkpoints_in, files.intact_in))
    return {
        "code": outcome.code,
        "error": outcome.error,
        "traceback": "Traceback" in outcome.err + outcome.out,
        "damaged": [str(path) for path in checkpoints if path not in intact],
        "frames": [path.name for path in checkpoints],
        "hidden": [path.name for path in run.rglob(".*") if path.name != ".hydra"] if run.exists() else [],
    }


def print_other_errors(failed):
    """Leaves a full disk unsaid in TensorBoard's writer thread: the run's own message follows when it flushes."""
    if getattr(failed.exc_value, "errno", None) != errno.ENOSPC:
        threading.__excepthook__(failed)


def main():
    threading.excepthook = print_other_errors
    disk, sizes, *arguments = sys.argv[1:]
    run = Path(disk) / "run"
    for kib in map(int, sizes.split(",")):
        free = leave_free(Path(disk), kib)
        full = train(arguments, run)
        free()
        after = train(arguments, run) if full["frames"] else None
        sys.stdout.write(json.dumps({"free": kib, "full": full, "after": after}) + "\n")
        shutil.rmtree(run, ignore_errors=True)


if __name__ == "__main__":
    main()
