import fcntl
import io
import math
import os
import struct
import termios

import pytest

from recurrl.tracking import progress
from recurrl.tracking.progress import Progress

END = "\x00"
METRICS = {"time/frames_per_s": 2000.0, "train/return_mean": 12.345}


class Terminal:
    """A pseudo-terminal: ``text`` returns what was written to ``stream``."""

    def __init__(self, columns):
        self.reader, writer = os.openpty()
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream = os.fdopen(writer, "w", encoding="utf-8")

    def text(self):
        """Everything written since the last call, once all of it has arrived."""
        self.stream.write(END)
        self.stream.flush()
        text = ""
        while not text.endswith(END):
            text += os.read(self.reader, 1 << 16).decode()
        return text.removesuffix(END)

    def close(self):
        self.stream.close()
        os.close(self.reader)


@pytest.fixture
def terminal():
    opened = []

    def terminal(columns=200):
        opened.append(Terminal(columns))
        return opened[-1]

    yield terminal
    for one in opened:
        one.close()


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
    """The line's texts, in drawing order."""
    return [part.removesuffix("\x1b[K") for part in text.rstrip("\r\n").split("\r") if part]


def test_the_line_says_frames_speed_returns_and_the_time_left(terminal):
    shown = terminal()
    Progress(100_000, shown.stream).update(25_000, {**METRICS, "eval/return_mean": 99.0})
    [line] = lines(shown.text())
    assert line == ("25,000/100,000 frames (25%) | 2,000 frames/s | return 12.35 | eval return 99.00 | 0:00:38 left")


def test_the_line_is_rewritten_in_place_and_left_when_the_run_ends(terminal, clock):
    shown = terminal()
    line = Progress(1000, shown.stream)
    for frames in (100, 200, 300):
        line.update(frames, METRICS)
        clock.now += 1
    text = shown.text()
    assert "\n" not in text
    assert text.count("\r") == 3
    assert [drawn.split("/")[0] for drawn in lines(text)] == ["100", "200", "300"]
    line.close()
    assert shown.text() == "\r\n"


def test_each_drawing_erases_what_a_longer_line_left(terminal, clock):
    shown = terminal()
    line = Progress(1000, shown.stream)
    line.update(100, METRICS)
    clock.now += 1
    line.update(200, {})
    assert shown.text().count("\x1b[K") == 2


def test_it_draws_at_most_about_ten_times_a_second_and_the_last_state_always(terminal, clock):
    shown = terminal()
    line = Progress(1000, shown.stream)
    for frames in range(1, 1001):
        line.update(frames, METRICS)
        clock.now += 0.001
    drawn = lines(shown.text())
    assert 9 <= len(drawn) <= 11
    line.close()
    assert lines(shown.text())[0].startswith("1,000/1,000 frames (100%)")


def test_closing_does_not_redraw(terminal):
    shown = terminal()
    line = Progress(1000, shown.stream)
    line.update(100, METRICS)
    shown.text()
    line.close()
    line.close()
    assert shown.text() == "\r\n"


def test_closing_before_anything_was_drawn_writes_nothing(terminal):
    shown = terminal()
    Progress(1000, shown.stream).close()
    assert shown.text() == ""


@pytest.mark.parametrize("columns", [1, 2, 20, 60])
def test_the_line_is_shorter_than_the_terminal_is_wide(terminal, columns):
    shown = terminal(columns)
    Progress(1000, shown.stream).update(100, METRICS)
    [line] = lines(shown.text()) or [""]
    assert len(line) == columns - 1


def test_an_unknown_terminal_width_defaults_to_eighty_columns(terminal):
    shown = terminal(columns=0)
    Progress(10**12, shown.stream).update(10**11, {**METRICS, "eval/return_mean": 1e9})
    [line] = lines(shown.text())
    assert len(line) == 79


def test_a_value_stays_until_replaced_and_nan_does_not_replace_it(terminal, clock):
    shown = terminal()
    line = Progress(1000, shown.stream)
    for metrics in ({"train/return_mean": math.nan}, {"eval/return_mean": 5.0}, {"train/return_mean": 1.0}, {}):
        line.update(100, metrics)
        clock.now += 1
    first, second, third, fourth = lines(shown.text())
    assert "return" not in first
    assert second.endswith("| eval return 5.00")
    assert third.endswith("| return 1.00 | eval return 5.00")
    assert fourth == third


@pytest.mark.parametrize("speed", [0.0, math.nan, math.inf])
def test_without_a_speed_there_is_no_time_left(terminal, speed):
    shown = terminal()
    Progress(1000, shown.stream).update(100, {"time/frames_per_s": speed})
    assert lines(shown.text()) == ["100/1,000 frames (10%)"]


def test_a_stream_that_is_not_a_terminal_gets_nothing():
    stream = io.StringIO()
    line = Progress(1000, stream)
    line.update(100, METRICS)
    line.close()
    assert stream.getvalue() == ""


def test_the_stream_is_standard_error_unless_another_is_given(terminal, monkeypatch):
    shown = terminal()
    monkeypatch.setattr("sys.stderr", shown.stream)
    Progress(1000).update(100, METRICS)
    assert lines(shown.text())[0].startswith("100/1,000 frames")
