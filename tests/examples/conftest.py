"""What the tests of the examples share: commands in the folder of the examples."""

from pathlib import Path

import pytest

EXTENDING = Path(__file__).parents[2] / "examples" / "extending"


@pytest.fixture
def extending():
    """The folder of the examples."""
    return EXTENDING


@pytest.fixture
def train(recurrl_train, tmp_path):
    """Trains into a folder below the test's, and returns it."""

    def train(*overrides, run="run"):
        recurrl_train(*overrides, f"hydra.run.dir={tmp_path / run}", cwd=EXTENDING).succeeded()
        return tmp_path / run

    return train


@pytest.fixture
def evaluated(recurrl_evaluate):
    """Evaluates a run, whose code is trusted or not."""
    return lambda run, *arguments: recurrl_evaluate(run, *arguments, cwd=EXTENDING)
