"""``examples/extending``: an algorithm whose loss has a term and an option of its own, through the command line."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

EXTENDING = Path(__file__).parents[2] / "examples" / "extending"
OWN = ("--config-dir", "configs", "algorithm=trust_ppo")


@pytest.fixture
def train(recurrl_train, tiny, tmp_path, monkeypatch):
    """Trains in the folder of the examples, into ``tmp_path``; a process of its own would not have them loaded."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        monkeypatch.delitem(sys.modules, name)
    return lambda *arguments, run="run": recurrl_train(*arguments, f"hydra.run.dir={tmp_path / run}", cwd=EXTENDING)


def rows(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return [{name: float(value or "nan") for name, value in row.items()} for row in csv.DictReader(file)]


def test_a_term_of_an_own_loss_is_minimised_and_logged(train, tiny, tmp_path):
    for run, coeff in (("without", 0), ("with", 5)):
        assert train(*OWN, *tiny, f"algorithm.trust_coeff={coeff}", "backend=scan", run=run).code == 0
    without, with_it = rows(tmp_path / "without"), rows(tmp_path / "with")
    assert [row["loss/trust"] for row in without] == [0.0, 0.0]
    assert all(row["loss/trust"] > 0 for row in with_it)
    # Its gradient keeps the policy nearer to the one that collected.
    assert with_it[0]["policy/kl"] < without[0]["policy/kl"]


def test_an_own_algorithm_resumes_and_is_evaluated(train, tiny, tmp_path, recurrl_evaluate):
    assert train(*OWN, *tiny).code == 0
    outcome = train(*OWN, f"resume={tmp_path / 'run'}", "total_frames=96", run="again")
    assert outcome.code == 0, outcome.err
    assert len(rows(tmp_path / "again")) == 1
    assert recurrl_evaluate(tmp_path / "again", "--trust-packages", cwd=EXTENDING).code == 0


def test_options_of_an_own_algorithm_are_checked_and_can_be_explained(train, tiny):
    assert "algorithm.trust_coeff must be" in train(*OWN, *tiny, "algorithm.trust_coeff=-1").error
    assert "Did you mean algorithm.trust_coeff" in train(*OWN, *tiny, "algorithm.trust_coef=1").error
    assert "# weight of the squared log-ratio" in train("--cfg", "job", *OWN).out


@pytest.mark.slow
@pytest.mark.parametrize("collector", ["multi_sync", "multi_async"])
def test_worker_processes_find_an_own_cell_beside_an_own_algorithm(console, tiny, tmp_path, collector):
    # In a process of its own, because the tests have the examples on their path.
    given = [*OWN, *tiny, "cell=elman", f"collector={collector}", f"hydra.run.dir={tmp_path / 'run'}"]
    outcome = console("recurrl-train", *given, cwd=EXTENDING)
    assert outcome.code == 0, outcome.err
    assert len(rows(tmp_path / "run")) == 2
