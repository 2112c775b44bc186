"""A program that kills a training run as often as it is told to, starting it again each time, until it completes.

    python killed_again_and_again.py RUN_DIR KILLS override...

Each life is a fork of this process, which has only imported things, so that it begins at once. One life in three dies
within the writing of a checkpoint, between two of its files; the others at a random moment, up to two iterations after
they came as far as they must for the kills to be spread over the whole run. Prints how each life ended, and what is in
shared memory after the last one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from recurrl.checkpoint import files
from recurrl.cli import train

PREFIX = len(files.PREFIX)


def frames_of_newest(run: Path) -> int:
    return max((int(path.name[PREFIX:]) for path in (run / "checkpoints").glob(f"{files.PREFIX}*")), default=0)


def live(run: Path, overrides: list[str], dies_at_file: int | None, after: int) -> None:
    """Trains, in the forked process; from ``after`` frames on it dies at a file of a checkpoint, if it is to."""
    with (run.parent / "output.txt").open("a") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    sync = files.sync
    files_left = [dies_at_file]

    def counting(path: Path) -> None:
        if files_left[0] is not None and frames_of_newest(run) >= after:
            files_left[0] -= 1
            if files_left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        sync(path)

    files.sync = counting
    sys.argv = ["recurrl-train", *overrides, "resume=auto", f"hydra.run.dir={run}"]
    try:
        train.main()
    except SystemExit as stop:
        sys.stderr.write(f"{stop.code}\n")
        os._exit(1 if stop.code else 0)
    os._exit(0)


def birth(run: Path, overrides: list[str], dies_at_file: int | None = None, after: int = 0) -> int:
    """The process id of a new life."""
    child = os.fork()
    if child == 0:
        live(run, overrides, dies_at_file, after)
    return child


def main() -> None:
    run, kills, overrides = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    total = [int(override.partition("=")[2]) for override in overrides if override.startswith("total_frames=")][-1]
    draws = random.Random(0)
    ends = []
    for life in range(kills):
        after = life * (total * 9 // 10) // kills
        within_a_checkpoint = life % 3 == 2
        child = birth(run, overrides, draws.randrange(12) if within_a_checkpoint else None, after)
        if not within_a_checkpoint:
            while frames_of_newest(run) < after and os.waitpid(child, os.WNOHANG) == (0, 0):
                time.sleep(0.001)
            # In the first lives also while it starts up.
            time.sleep(draws.uniform(0, 1.0 if life < 3 else 0.1))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status), f"life {life} ended by itself: {(run.parent / 'output.txt').read_text()}"
        ends.append({"frames": frames_of_newest(run), "within_a_checkpoint": within_a_checkpoint})
    status = os.waitpid(birth(run, overrides), 0)[1]
    assert status == 0, (run.parent / "output.txt").read_text()
    # Python's tracker removes the semaphores of a process that was killed a moment after it.
    deadline = time.monotonic() + 20
    while list(Path("/dev/shm").glob("sem.mp-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    sys.stdout.write(
        json.dumps({"lives": ends, "shared_memory": [path.name for path in Path("/dev/shm").iterdir()]}) + "\n"
    )


if __name__ == "__main__":
    main()
