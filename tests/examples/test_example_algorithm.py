"""``examples/extending``: an algorithm from scratch, and one with parameters, through the command line."""

import sys

import pytest
from run_files import column

REINFORCE = ("--config-dir", "configs", "algorithm=reinforce", "epochs=1")
PREDICTING = ("--config-dir", "configs", "algorithm=predicting_ppo")


@pytest.fixture(autouse=True)
def _not_loaded(monkeypatch):
    """As in a process of its own, which would not have the examples loaded."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        monkeypatch.delitem(sys.modules, name)


def test_an_algorithm_from_scratch_learns(train):
    run = train(
        *REINFORCE, "total_frames=20480", "evaluation.episodes=2", "lr=1e-3", "slice_len=32", "minibatch_slices=4"
    )
    returns = column(run, "train/return_mean")
    assert returns[-1] > 2 * returns[0]


def test_the_error_of_a_prediction_from_the_features_falls(train):
    errors = column(train(*PREDICTING, "total_frames=8192", "evaluation.episodes=2"), "prediction/error")
    assert errors[-1] < 0.4 * errors[0]


@pytest.mark.parametrize("algorithm", [REINFORCE, PREDICTING], ids=lambda algorithm: algorithm[2])
def test_a_custom_algorithm_resumes_and_is_evaluated(algorithm, train, tiny, evaluated):
    again = train(*algorithm, f"resume={train(*algorithm, *tiny)}", "total_frames=96", run="again")
    assert len(column(again, "frames")) == 3
    evaluated(again).succeeded()


@pytest.mark.slow
@pytest.mark.parametrize("collector", ["multi_sync", "multi_async"])
def test_worker_processes_find_a_custom_cell_beside_a_custom_algorithm(console, tiny, tmp_path, extending, collector):
    # In a process of its own, because the tests have the examples on their path.
    arguments = [*PREDICTING, *tiny, "cell=elman", f"collector={collector}", f"hydra.run.dir={tmp_path / 'run'}"]
    console("recurrl-train", *arguments, cwd=extending).succeeded()
    assert len(column(tmp_path / "run", "frames")) == 2
