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


@pytest.fixture
def error(recurrl_train, tmp_path):
    """The error with which overrides are rejected before a run directory is made."""

    def error(*overrides):
        outcome = recurrl_train(*overrides, f"hydra.run.dir={tmp_path / 'rejected'}", cwd=EXTENDING).failed()
        assert not (tmp_path / "rejected").exists()
        return outcome.error

    return error


@pytest.fixture
def explained(recurrl_train):
    """The configuration that a choice has, with what each key means."""
    return lambda *overrides: recurrl_train(*overrides, "--cfg", "job", cwd=EXTENDING).out
