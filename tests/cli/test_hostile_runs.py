"""Directories of strangers, other programs and broken disks: nothing of them runs, and nothing foreign changes."""

import faulthandler
import shutil
from collections import Counter

import pytest
from hostile_runs import draw, fingerprints
from slow_cases import slow

SMALL = ("checkpoint.every_frames=32", "checkpoint.keep_last=1")


SEEDS = [(14, 4), *(slow(first, 100) for first in range(1_000, 2_000, 100))]


@pytest.mark.parametrize(("first", "count"), SEEDS)
def test_a_hostile_run_directory_works_or_is_rejected_and_stays_untouched(
    first, count, train, evaluate, tiny, finished_run, stranger, tmp_path
):
    became = Counter()
    problems = []
    commands = {
        "evaluated": evaluate,
        "resumed": lambda run: train(f"resume={run}", "total_frames=96", "hydra.run.dir=out"),
        "begun": lambda run: train(*tiny, *SMALL, f"hydra.run.dir={run}"),
        "continued": lambda run: train(*tiny, *SMALL, "total_frames=128", "resume=auto", f"hydra.run.dir={run}"),
    }
    for seed in range(first, first + count):
        run, outside = tmp_path / "stranger" / "run", tmp_path / "outside"
        changes, foreign = draw(seed, finished_run, run, outside, stranger)
        before = fingerprints(foreign, run)
        for name, command in commands.items():
            description = f"seed {seed}: {', '.join(changes)}; {name}"
            # Whoever waits for a pipe waits for ever.
            faulthandler.dump_traceback_later(120, exit=True)
            outcome = command(run)
            faulthandler.cancel_dump_traceback_later()
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            after = fingerprints(foreign, run)
            wrong = {
                "a traceback": "Traceback" in outcome.err + outcome.out,
                "an exit code without an error": outcome.code != (1 if outcome.error else 0),
                "code that ran": stranger.exists(),
                "a foreign file that changed": after != before,
            }
            changed = {path: (before[path], now) for path, now in after.items() if now != before[path]}
            problems += [f"{what}: {description}\n{changed or outcome.err}" for what, is_so in wrong.items() if is_so]
            before = after
            shutil.rmtree(stranger, ignore_errors=True)
            became[f"{name}: {'rejected' if outcome.error else 'done'}"] += 1
        shutil.rmtree(tmp_path / "stranger")
        shutil.rmtree(outside)
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems)
    for name in commands:
        assert min(became[f"{name}: rejected"], became[f"{name}: done"]) > 0, became
