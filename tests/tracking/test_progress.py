import io
import math
import os
import re
from unittest.mock import Mock

import pytest

from recurrl.tracking import progress
from recurrl.tracking.progress import SWITCH, Progress, described

METRICS = {"time/frames_per_s": 2000.0, "train/return_mean": 12.345}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True

    def text(self):
        """Everything written since the last call."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, and progress that is drawn there."""
    monkeypatch.delenv(SWITCH, raising=False)

    def terminal(total=1000, columns=120):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = Terminal()
        return shown, Progress(total, shown)

    return terminal


@pytest.fixture
def clock(monkeypatch):
    """Progress's clock, advanced by hand."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def lines(text):
    """What was drawn, without control sequences and empty lines."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [line.strip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_the_line_has_time_frames_speed_returns_time_left_and_last_warning(terminal):
    shown, bar = terminal(100_000)
    bar.update(25_000, {**METRICS, "eval/return_mean": 99.0}, warning="Entropy collapsed")
    bar.close()
    last = lines(shown.text())[-1]
    assert re.match(r"0:00:0\d ", last)
    assert last.endswith(
        " 25,000/100,000 frames at 2,000/s · return 12.35 · eval 99.00 · 0:00:38 left · Entropy collapsed"
    )


def test_the_line_is_rewritten_in_place_and_left_when_the_run_ends(terminal, clock):
    shown, bar = terminal()
    for frames in (100, 200, 300):
        bar.update(frames, METRICS)
        clock.now += 1
    assert "\n" not in shown.text().rstrip("\r\n")
    bar.close()
    text = shown.text()
    assert lines(text)[-1].split()[1].startswith("300/1,000")
    assert text.endswith("\n")


def test_it_draws_at_most_about_ten_times_a_second_and_the_last_state_always(terminal, clock):
    shown, bar = terminal()
    for frames in range(1, 1001):
        bar.update(frames, METRICS)
        clock.now += 0.001
    assert 9 <= shown.text().count(" frames at ") <= 11
    bar.close()
    assert "1,000/1,000 frames" in lines(shown.text())[-1]


@pytest.mark.parametrize("columns", [20, 60])
def test_the_line_is_not_longer_than_the_terminal_is_wide(terminal, columns):
    shown, bar = terminal(columns=columns)
    bar.update(100, METRICS)
    bar.close()
    assert max(map(len, lines(shown.text()))) <= columns


def test_a_log_message_stands_above_the_progress_on_a_line_that_begins_with_it(terminal):
    shown, bar = terminal()
    bar.update(100, METRICS)
    shown.write("careful\n")
    bar.close()
    drawn = lines(shown.text())
    assert drawn[1] == "careful"
    assert "100/1,000 frames" in drawn[-1]


def test_a_terminal_that_was_closed_does_not_end_the_run(terminal):
    shown, bar = terminal()
    shown.flush = Mock(side_effect=OSError)
    bar.update(100, METRICS)
    bar.close()


def test_a_value_stays_until_replaced_and_nan_does_not_replace_it(terminal, clock):
    shown, bar = terminal()
    drawn = []
    for metrics in ({"train/return_mean": math.nan}, {"eval/return_mean": 5.0}, {"train/return_mean": 0.97}, {}):
        bar.update(100, metrics)
        drawn.append(lines(shown.text())[-1])
        clock.now += 1
    bar.close()
    first, second, third, fourth = (line.partition("frames")[2] for line in drawn)
    assert (first, second, third, fourth) == ("", " · eval 5.000", *[" · return 0.9700 · eval 5.000"] * 2)


@pytest.mark.parametrize("speed", [{}, {"time/frames_per_s": 0.0}])
def test_without_a_speed_there_is_no_time_left(speed):
    assert described(100, 1000, speed) == "100/1,000 frames"


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
