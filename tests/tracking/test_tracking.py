import sys
from unittest.mock import Mock, call

import pytest
from commands import output_of
from rejections import error_of

import recurrl.tracking
import recurrl.tracking.csv
import recurrl.tracking.tensorboard
from recurrl.callbacks.builtin import Log
from recurrl.tracking import Tracker, make_trackers
from recurrl.tracking.csv import CsvTracker


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_closing_reaches_every_destination_and_raises_the_failure_of_one(failing):
    trackers = [Mock(Tracker) for _ in range(3)]
    trackers[failing].close.side_effect = OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        Log(trackers, diagnosis=None, checkpoints=None, progress=Mock()).close(failed=True)
    assert [tracker.close.mock_calls for tracker in trackers] == [[call(True)]] * 3


def test_a_metric_named_like_the_axis_is_an_error_before_recording(tmp_path):
    tracker = CsvTracker(tmp_path / "metrics.csv")
    assert "must not be named frames" in error_of(tracker.log, 1, {"frames": 1.0}, kind=ValueError)
    assert (tmp_path / "metrics.csv").read_text() == ""


LATER = [
    ({"side_effect": ValueError("not here")}, "not here"),
    ({"return_value": object()}, "logger=tensorboard must be a recurrl.tracking.Tracker (got object)"),
]


@pytest.mark.parametrize(("made", "error"), LATER)
def test_destinations_are_closed_as_failed_when_a_later_one_fails(logger_options, tmp_path, monkeypatch, made, error):
    first = Mock(Tracker)
    monkeypatch.setattr(recurrl.tracking.csv, "make", lambda *_: first)
    monkeypatch.setattr(recurrl.tracking.tensorboard, "make", Mock(**made))
    assert error in error_of(make_trackers, logger_options("tensorboard"), tmp_path, {}, kind=ValueError)
    assert first.close.mock_calls == [call(failed=True)]


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
