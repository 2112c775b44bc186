"""A program that ends a training run as often as requested, resuming it each time, until it completes.

    python killed_again_and_again.py RUN_DIR KILLS TERMS TOTAL_FRAMES CHECKPOINT_EVERY_FRAMES override...

Each life is a fork of this process, which has only imported things, so that it begins at once; so do its workers, which
come from a server that has imported them too. A life ends by SIGKILL or SIGTERM: at a random call of a function; within
the writing of a checkpoint, between two of its files; within an evaluation, between two of its steps; or within the
last one. They are spread over the whole run. After each one the newest checkpoint has to be whole, and no row of
metrics.csv may be further from it than the checkpoints are from one another.

Prints how each life ended, and what is in shared memory after the last one.
"""

import csv
import itertools
import json
import os
import random
import signal
import sys
import time
from functools import partial
from multiprocessing import context, forkserver, resource_tracker
from pathlib import Path

from recurrl import evaluation
from recurrl.checkpoint import files
from recurrl.cli import train as train_command

ANYWHERE, CHECKPOINT, EVALUATION, LAST_EVALUATION = "anywhere", "checkpoint", "evaluation", "last evaluation"
# Of blocks of Python's calls, an iteration or two; of the files of a checkpoint, one of which is left at least; and of
# the steps of its evaluation; the last one is three, one after the other.
MOST = {ANYWHERE: 12, CHECKPOINT: 10, EVALUATION: 9, LAST_EVALUATION: 27}
BLOCK = 200


def frames_of_newest(run):
    return max(map(files.frames_of, files.checkpoints_in(run / "checkpoints")), default=0)


def frames_of_last_row(run):
    file = run / "metrics.csv"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return max((int(row["frames"]) for row in csv.DictReader(lines)), default=0)


def ends_itself(run, number, where, calls, after):
    """Has this process send itself a signal, once it has come far enough, at a call of what happens there."""
    left = itertools.count(calls, -1)

    def count():
        if frames_of_newest(run) >= after and next(left) == 0:
            os.kill(os.getpid(), number)

    if where == ANYWHERE:
        profile(run, count, after)
    elif where == CHECKPOINT:
        sync = os.fsync

        def counting_sync(file):
            if f"{run}/checkpoints" in os.readlink(f"/proc/self/fd/{file}"):
                count()
            sync(file)

        os.fsync = counting_sync
    else:
        evaluation.evaluate = partial(counting_steps, evaluation.evaluate, count)


def profile(run, count, after):
    """Counts blocks of calls, from the checkpoint at which it starts to matter: it takes most of the time of a life."""
    calls_in_block, replace = itertools.cycle(range(BLOCK)), os.replace

    def begin():
        if frames_of_newest(run) >= after:
            sys.setprofile(lambda *_: next(calls_in_block) or count())

    def replacing(*paths):
        replace(*paths)
        begin()

    os.replace = replacing
    begin()


def counting_steps(evaluate, count, *arguments):
    """Evaluates, and counts before each step."""
    *others, stopped = arguments
    return evaluate(*others, lambda: count() or stopped())


def lived(run, overrides, prepare=lambda: None):
    """Trains, in a fork of this process, and returns its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with (run.parent / "output.txt").open("a") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    # One of its own, which removes what this process leaves.
    resource_tracker._resource_tracker._fd = None
    prepare()
    sys.argv = ["recurrl-train", *overrides, "resume=auto", f"hydra.run.dir={run}"]
    try:
        train_command.main()
    except SystemExit as stop:
        sys.stderr.write(f"{stop.code}\n")
        os._exit(stop.code if isinstance(stop.code, int) else int(stop.code is not None))
    os._exit(0)


def start_server():
    """Has processes that are spawned come from one that has imported what they need."""
    forkserver.set_forkserver_preload(["recurrl.cli", "recurrl.build"])
    forkserver.ensure_running()
    # A life cannot wait for it, whose child it is not.
    forkserver._forkserver.ensure_running = lambda: None
    context.SpawnProcess._Popen = staticmethod(context.ForkServerProcess._Popen)


def plan(kills, terms, draws):
    """By what and where each life ends: a quarter in each place, the last evaluation last."""
    places = (ANYWHERE, CHECKPOINT, EVALUATION, LAST_EVALUATION)
    numbers = [signal.SIGKILL] * kills + [signal.SIGTERM] * terms
    ends = [(int(number), places[i % len(places)]) for i, number in enumerate(numbers)]
    draws.shuffle(ends)
    return sorted(ends, key=lambda end: end[1] == LAST_EVALUATION)


def check(run, most):
    """Makes sure that the newest checkpoint is whole, and returns how many frames were trained after it."""
    for path in files.checkpoints_in(run / "checkpoints")[-1:]:
        files.manifest(path)  # rejects a damaged one
    unsaved = max(frames_of_last_row(run) - frames_of_newest(run), 0)
    assert unsaved <= most, f"{unsaved} frames were lost"
    return unsaved


def main():
    run, overrides = Path(sys.argv[1]), sys.argv[6:]
    kills, terms, total, interval = map(int, sys.argv[2:6])
    if any(each.startswith("collector=multi") for each in overrides):
        start_server()
    draws = random.Random(0)
    ends = plan(kills, terms, draws)
    spread = [where for _, where in ends].index(LAST_EVALUATION)
    lives = []
    unsaved = 0
    for life, (number, where) in enumerate(ends):
        after = total if where == LAST_EVALUATION else life * (total * 8 // 10) // spread
        calls = draws.randrange(MOST[where])
        code = lived(run, overrides, partial(ends_itself, run, number, where, calls, after))
        # As python ends by SIGTERM, before the run handles it.
        expected = {-number} if number == signal.SIGKILL or where == ANYWHERE else set()
        expected |= {128 + number} if number == signal.SIGTERM else set()
        assert code in expected, f"life {life}, {where}: {code} {(run.parent / 'output.txt').read_text()}"
        unsaved = check(run, unsaved if code == 128 + number else interval)
        lives.append({"frames": frames_of_newest(run), "code": code, "where": where, "time": time.time()})
    assert lived(run, overrides) == 0, (run.parent / "output.txt").read_text()
    # Python's tracker removes the semaphores of a process that was killed a moment after it.
    deadline = time.monotonic() + 20
    while list(Path("/dev/shm").glob("sem.mp-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = [path.name for path in Path("/dev/shm").iterdir()]
    sys.stdout.write(json.dumps({"lives": lives, "shared_memory": left}) + "\n")


if __name__ == "__main__":
    main()
