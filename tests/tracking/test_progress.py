import io
import math
import os
import re
from unittest.mock import Mock

import pytest

from recurrl.tracking.progress import SWITCH, Progress

METRICS = {"time/frames_per_s": 2000.0, "train/return_mean": 12.345}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, and progress that is drawn there."""
    monkeypatch.delenv(SWITCH, raising=False)

    def terminal(total=1000, columns=120):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = Terminal()
        return shown, Progress(total, shown)

    return terminal


def lines(shown):
    """What was drawn, without control sequences and empty lines."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    return [line.strip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_the_line_has_time_frames_speed_returns_time_left_and_last_warning(terminal):
    shown, bar = terminal(100_000)
    bar.update(25_000, {**METRICS, "eval/return_mean": 99.0}, warning="Collapsed")
    bar.close()
    last = lines(shown)[-1]
    assert re.match(r"0:00:0\d ", last)
    assert last.endswith(" 25,000/100,000 frames at 2,000/s · return 12.35 · eval 99.00 · 0:00:38 left · Collapsed")


def test_the_line_is_rewritten_in_place_and_the_last_state_is_left(terminal):
    shown, bar = terminal()
    for frames in (500, 1000):
        bar.update(frames, METRICS)
    assert "\n" not in shown.getvalue()
    assert shown.getvalue().count(" frames at ") == 2
    bar.close()
    assert "1,000/1,000 frames" in lines(shown)[-1]
    assert shown.getvalue().endswith("\n")


@pytest.mark.parametrize("columns", [20, 60])
def test_the_line_is_not_longer_than_the_terminal_is_wide(terminal, columns):
    shown, bar = terminal(columns=columns)
    bar.update(100, METRICS)
    bar.close()
    assert max(map(len, lines(shown))) <= columns


def test_a_log_message_stands_above_the_progress_on_a_line_that_begins_with_it(terminal):
    shown, bar = terminal()
    bar.update(100, METRICS)
    shown.write("careful\n")
    bar.close()
    drawn = lines(shown)
    assert drawn[1] == "careful"
    assert "100/1,000 frames" in drawn[-1]


def test_a_terminal_that_was_closed_does_not_end_the_run(terminal):
    shown, bar = terminal()
    shown.flush = Mock(side_effect=OSError)
    bar.update(100, METRICS)
    bar.close()


def test_a_value_stays_until_replaced_and_nan_or_a_speed_of_zero_is_not_shown(terminal):
    shown, bar = terminal()
    drawn, nothing = [], {"train/return_mean": math.nan, "time/frames_per_s": 0.0}
    for metrics in (nothing, {"eval/return_mean": 5.0}, {"train/return_mean": 0.97}, nothing):
        bar.update(100, metrics)
        drawn.append(lines(shown)[-1])
    bar.close()
    first, second, third, fourth = (line.partition("frames")[2] for line in drawn)
    assert (first, second, third, fourth) == ("", " · eval 5.000", *[" · return 0.9700 · eval 5.000"] * 2)


def test_nothing_is_drawn_in_a_file_or_where_another_process_draws(monkeypatch):
    drawn = []
    this = os.getpid()
    for process, stream in ((this, io.StringIO()), (1, Terminal()), ("off", Terminal()), (this, Terminal())):
        monkeypatch.setenv(SWITCH, str(process))
        bar = Progress(1000, stream)
        bar.update(100, METRICS)
        bar.close()
        drawn.append(stream.getvalue() != "")
    assert drawn == [False, False, False, True]
