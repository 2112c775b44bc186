"""``examples/extending``: a collector with an option, a metric and a state of its own, through the command line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

EXTENDING = Path(__file__).parents[2] / "examples" / "extending"
OWN = "collector=my_package.resetting_collector:make"


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return [
            {name: value for name, value in row.items() if not name.startswith("time/")} for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("on_fault", ["raise", "restart"])
def test_a_run_with_an_own_collector_resumes_as_if_it_had_not_stopped(recurrl_train, tiny, tmp_path, on_fault):
    given = [*tiny, OWN, "collector.reset_every=3", f"collector.on_fault={on_fault}", "backend=scan"]
    given += ["schedule_frames=160"]
    for run, frames in (("whole", 160), ("half", 64)):
        overrides = [f"total_frames={frames}", f"hydra.run.dir={tmp_path / run}"]
        outcome = recurrl_train(*given, *overrides, cwd=EXTENDING)
        assert outcome.code == 0, outcome.err
    # Only its name: collector=... would also take the defaults of its options.
    again = [
        OWN.replace("collector", "collector.name", 1),
        f"resume={tmp_path / 'half'}",
        "total_frames=160",
        f"hydra.run.dir={tmp_path / 'again'}",
    ]
    outcome = recurrl_train(*again, cwd=EXTENDING)
    assert outcome.code == 0, outcome.err
    assert rows(tmp_path / "again") == rows(tmp_path / "whole")[2:]
    assert [row["collect/reset"] for row in rows(tmp_path / "whole")] == ["1.0", "0.0", "0.0", "1.0", "0.0"]


def test_an_option_out_of_range_is_refused(recurrl_train, tiny, tmp_path):
    outcome = recurrl_train(*tiny, OWN, "collector.reset_every=0", f"hydra.run.dir={tmp_path / 'run'}", cwd=EXTENDING)
    assert "collector.reset_every must be" in outcome.error
