"""``examples/extending``: a buffer with an option of its own, through the command line."""

from __future__ import annotations

import csv
from pathlib import Path

EXTENDING = Path(__file__).parents[2] / "examples" / "extending"
OWN = "buffer=my_package.prioritized_buffer:PrioritizedBuffer"


def test_an_own_buffer_trains_and_resumes_and_its_option_counts(recurrl_train, tiny, tmp_path):
    objectives = set()
    for exponent in (0, 1):
        run = tmp_path / str(exponent)
        given = [OWN, f"buffer.exponent={exponent}", f"hydra.run.dir={run}", "backend=scan"]
        outcome = recurrl_train(*tiny, *given, cwd=EXTENDING)
        assert outcome.code == 0, outcome.err
        with (run / "metrics.csv").open(encoding="utf-8") as file:
            objectives.add(next(csv.DictReader(file))["loss/objective"])
    assert len(objectives) == 2
    again = [OWN, f"resume={tmp_path / '1'}", "total_frames=96", f"hydra.run.dir={tmp_path / 'again'}"]
    outcome = recurrl_train(*again, cwd=EXTENDING)
    assert outcome.code == 0, outcome.err


def test_an_option_out_of_range_is_refused(recurrl_train, tiny, tmp_path):
    outcome = recurrl_train(*tiny, OWN, "buffer.exponent=2", f"hydra.run.dir={tmp_path / 'run'}", cwd=EXTENDING)
    assert outcome.error == "buffer.exponent must be a number from 0 to 1 (got 2.0)."
