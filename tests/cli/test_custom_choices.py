"""Custom choices through the commands: options, sweeps, yamls, resuming, and code that is not trusted."""

import pytest
from run_files import ended, metrics, settings

LOGGER = """
from dataclasses import dataclass
from pathlib import Path
from recurrl.config import LoggerConfig
from recurrl.config.options import FRACTION, option
from recurrl.tracking import Tracker

Path(__file__).with_name("imported").touch()

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

    def close(self, exit_code=0):
        pass

class Failing(Notes):
    def log(self, frames, metrics):
        if frames == 64:
            raise KeyError("no such note")

def unsupported(options: "Unsupported", *_): ...

@dataclass
class Unsupported(LoggerConfig):
    made_of: Path | bytes | set = option("no value of a yaml", default=None)
"""
OWN = "own_package.notes:Notes"


@pytest.fixture
def package(tmp_path):
    """A user's package in the current folder; returns a path that exists once it has been imported."""
    folder = tmp_path / "own_package"
    folder.mkdir()
    (folder / "notes.py").write_text(LOGGER, encoding="utf-8")
    return folder / "imported"


@pytest.fixture
def own_run(train, tiny, package, tmp_path):
    """A finished run with a custom logger, from elsewhere, which has not been imported since."""
    train(*tiny, f"logger={OWN}", "logger.share=0.25", "hydra.run.dir=there").succeeded()
    package.unlink()
    return (tmp_path / "there").rename(tmp_path / "run")


# Options


def test_a_sweep_over_a_choice_of_the_package_and_a_custom_one(train, tiny, package, tmp_path):
    train("-m", *tiny, f"logger=csv,{OWN}", "hydra.sweep.dir=sweep").succeeded()
    assert [(tmp_path / "sweep" / job / "notes.txt").exists() for job in "01"] == [False, True]


def test_options_that_a_configuration_cannot_hold_are_rejected(train, package):
    error = train("logger=own_package.notes:unsupported").error
    assert error.startswith("logger: the options of Unsupported must be numbers, strings, lists or dictionaries")


# Failures


def test_a_logger_that_raises_ends_the_run_which_can_be_resumed(train, tiny, package, tmp_path):
    ours = ["logger=own_package.notes:Failing", "checkpoint.every_frames=32", "hydra.run.dir=run"]
    outcome = train(*tiny, *ours).failed()
    assert "no such note" in outcome.err
    assert "own_package/notes.py" in outcome.err  # its traceback
    assert ended(tmp_path / "run", "error") == ("failed", "KeyError: 'no such note'")
    assert [row["frames"] for row in metrics(tmp_path / "run")] == ["32", "64"]
    train("resume=run", "logger=csv", "total_frames=96", "hydra.run.dir=run").succeeded()
    assert [row["frames"] for row in metrics(tmp_path / "run")] == ["32", "64", "96"]


# Resuming and evaluating


def test_a_run_is_used_again_once_its_code_is_trusted(train, evaluate, own_run, package, tmp_path):
    error = train(f"resume={own_run}", "total_frames=96").error
    assert error.endswith(f"If you trust it, name it on this command line too: logger.name={OWN}.")
    assert not package.exists()
    evaluate(own_run, "--trust-packages").succeeded()
    assert package.exists()
    train(f"resume={own_run}", "total_frames=96", f"logger.name={OWN}", "hydra.run.dir=next").succeeded()
    assert settings(tmp_path / "next")["logger"] == settings(own_run)["logger"]
    assert "notes 0.25" in (tmp_path / "next" / "notes.txt").read_text()
