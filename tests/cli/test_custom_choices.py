"""Custom choices through the commands: options, sweeps, and failures."""

import pytest
from run_files import ended, metrics

LOGGER = """
from dataclasses import dataclass
from pathlib import Path
from recurrl.config import LoggerConfig
from recurrl.config.options import FRACTION, option
from recurrl.tracking import Tracker

@dataclass
class NotesConfig(LoggerConfig):
    share: float = option("share of the iterations to log", FRACTION, default=0.5)
    title: str = option("heading", default="notes")

class Notes(Tracker):
    def __init__(self, options: NotesConfig, run_dir, settings, resumed):
        self.path = run_dir / "notes.txt"
        self.path.write_text(f"{options.title} {options.share}")

    def log(self, frames, metrics):
        pass

    def close(self, failed=False):
        pass

class Failing(Notes):
    id = 42

    def log(self, frames, metrics):
        if frames == 64:
            raise KeyError("no such note")

def unsupported(options: "Unsupported", *_): ...

@dataclass
class Unsupported(LoggerConfig):
    made_of: Path | bytes | set = option("no value of a yaml", default=None)
"""


@pytest.fixture
def package(tmp_path):
    """A user's package in the current folder."""
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "notes.py").write_text(LOGGER, encoding="utf-8")


def test_a_sweep_over_a_choice_of_the_package_and_a_custom_one(train, tiny, package, tmp_path):
    train("-m", *tiny, "logger=csv,own_package.notes:Notes", "hydra.sweep.dir=sweep").succeeded()
    assert [(tmp_path / "sweep" / job / "notes.txt").exists() for job in "01"] == [False, True]


def test_hydras_other_logging_can_be_chosen(train, tiny):
    train(*tiny, "hydra/job_logging=stdout").succeeded()


def test_options_that_a_configuration_cannot_hold_are_rejected(train, package):
    error = train("logger=own_package.notes:unsupported").error
    assert error.startswith("logger: the options of Unsupported must be numbers, strings, lists or dictionaries")


def test_a_logger_that_raises_ends_the_run_which_can_be_resumed(train, tiny, package, tmp_path):
    ours = ["logger=own_package.notes:Failing", "checkpoint.every_frames=32", "hydra.run.dir=run"]
    outcome = train(*tiny, *ours).failed()
    assert "no such note" in outcome.err
    assert "own_package/notes.py" in outcome.err  # its traceback
    assert ended(tmp_path / "run", "error") == ("failed", "KeyError: 'no such note'")
    assert [row["frames"] for row in metrics(tmp_path / "run")] == ["32", "64"]
    train("resume=run", "logger=csv", "total_frames=96", "hydra.run.dir=run").succeeded()
    assert [row["frames"] for row in metrics(tmp_path / "run")] == ["32", "64", "96"]
