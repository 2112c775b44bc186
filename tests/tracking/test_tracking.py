import sys

import pytest
from commands import output_of
from rejections import error_of

import recurrl.tracking
import recurrl.tracking.csv
import recurrl.tracking.tensorboard
from recurrl.callbacks.builtin import Log
from recurrl.tracking import Tracker, make_trackers
from recurrl.tracking.csv import CsvTracker


class Recorder(Tracker):
    def __init__(self, events=None, name="", failure=None):
        self.events = [] if events is None else events
        self.name = name
        self.failure = failure

    def log(self, frames, metrics):
        self.events.append((self.name, frames, dict(metrics)))

    def close(self, exit_code=0):
        self.events.append((self.name, "closed", exit_code))
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_closing_reaches_every_destination_and_raises_the_failure_of_one(failing):
    events = []
    trackers = [Recorder(events, str(i), OSError("disk full") if i == failing else None) for i in range(3)]
    with pytest.raises(OSError, match="disk full"):
        Log(trackers, diagnosis=None, checkpoints=None, total_frames=1).close(failed=True)
    assert sorted(events) == [(name, "closed", 1) for name in ("0", "1", "2")]


def test_a_metric_named_like_the_axis_is_an_error_before_recording(tmp_path):
    with pytest.raises(ValueError, match="must not be named frames"):
        CsvTracker(tmp_path / "metrics.csv").log(1, {"frames": 1.0})
    assert (tmp_path / "metrics.csv").read_text() == ""


def test_opened_destinations_are_closed_as_failed_when_a_later_one_fails(logger_options, tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("not here")

    first = Recorder()
    monkeypatch.setattr(recurrl.tracking.csv, "make", lambda *_: first)
    monkeypatch.setattr(recurrl.tracking.tensorboard, "make", fail)
    assert "not here" in error_of(make_trackers, logger_options("tensorboard"), tmp_path, {}, kind=ValueError)
    assert first.events == [("", "closed", 1)]


def test_importing_the_package_and_making_csv_imports_no_heavy_library(tmp_path):
    script = """
import sys
from pathlib import Path
from recurrl.config import LoggerConfig
from recurrl.tracking import make_trackers
make_trackers(LoggerConfig(name="csv"), Path(sys.argv[1]), {})["csv"].close()
print(sorted({"wandb", "tensorboard", "torch", "matplotlib", "hydra", "omegaconf"} & set(sys.modules)))
"""
    assert output_of([sys.executable, "-c", script, tmp_path]).strip() == "[]"


def test_a_logger_that_is_no_tracker_is_an_error_before_training(logger_options, tmp_path, monkeypatch):
    monkeypatch.setattr(recurrl.tracking.tensorboard, "make", lambda *_: object())
    with pytest.raises(ValueError, match=r"logger=tensorboard must be a recurrl.tracking.Tracker \(got object\)"):
        make_trackers(logger_options("tensorboard"), tmp_path, {})
