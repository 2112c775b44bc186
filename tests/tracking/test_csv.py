import math
import os
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rejections import error_of
from run_files import metrics, write_rows

from recurrl.tracking.csv import CsvTracker, make

names = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).filter("frames".__ne__)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.dictionaries(names, st.floats(), max_size=4), max_size=6))
def test_whatever_was_logged_is_read_back_to_the_last_digit_under_its_name(rows):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "metrics.csv"
        write_rows(path, enumerate(rows, start=1))
        assert list(path.parent.iterdir()) == [path]
        for index, (row, logged) in enumerate(zip(metrics(path.parent), rows, strict=True), start=1):
            assert int(row.pop("frames")) == index
            cells = {name: float(cell) for name, cell in row.items() if cell}
            assert cells.keys() == logged.keys()
            assert all(cells[name] == value or math.isnan(value) for name, value in logged.items())


RESUMED = {
    "repeated frames": ("frames,a\n8,8.0\n16,16.0\n24,24.0\n", "a", "frames,a\n8,8.0\n16,-1.0\n24,-1.0\n"),
    "a new metric": ("frames,a\n8,8.0\n", "b", "frames,a,b\n8,8.0,\n16,,-1.0\n24,,-1.0\n"),
    "a row cut off by a crash": ("frames,a\n8,8.0\n16,12.3", "a", "frames,a\n8,8.0\n16,-1.0\n24,-1.0\n"),
    "a byte order mark": ("\ufeffframes,a\n8,8.0\n", "a", "frames,a\n8,8.0\n16,-1.0\n24,-1.0\n"),
    "no header": ("", "a", "frames,a\n16,-1.0\n24,-1.0\n"),
    "half a header": ("frames,b", "a", "frames,a\n16,-1.0\n24,-1.0\n"),
}


@pytest.mark.parametrize(("before", "metric", "after"), RESUMED.values(), ids=RESUMED)
def test_a_run_that_resumes_in_its_directory_continues_its_rows(logger_options, tmp_path, before, metric, after):
    (tmp_path / "metrics.csv").write_text(before)
    tracker = make(logger_options(), tmp_path, {})
    for frames in (16, 24):
        tracker.log(frames, {metric: -1.0})
    assert (tmp_path / "metrics.csv").read_text() == after


def test_a_resumed_run_that_logs_nothing_changes_nothing(logger_options, tmp_path):
    write_rows(tmp_path / "metrics.csv", [(8, {"a": 8.0}), (16, {"a": 16.0})])
    before = (tmp_path / "metrics.csv").read_bytes()
    make(logger_options(), tmp_path, {}).close(failed=True)
    assert (tmp_path / "metrics.csv").read_bytes() == before


FOREIGN = [
    *("a\n1\n", "frames,a\n8,1,2\n", "frames,a\nx,1\n", "frames,a\n8,many\n", "frames\n-8\n", 'frames,"a\n8,1\n'),
    f"frames\n{400 * '9'}\n",
]


@pytest.mark.parametrize("text", FOREIGN)
def test_a_file_that_no_run_wrote_is_rejected_before_anything_is_trained(tmp_path, text):
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    assert re.match(r"Line \d of .*metrics\.csv is malformed: .*\. Move the file away", error_of(CsvTracker, path))
    assert path.read_text() == text


NO_TEXT = {"pipe": os.mkfifo, "folder": Path.mkdir, "not text": lambda path: path.write_bytes(b"frames\n\xff\n")}


@pytest.mark.parametrize("place", NO_TEXT.values(), ids=NO_TEXT)
def test_what_is_not_a_file_of_text_is_rejected_without_waiting(tmp_path, place):
    path = tmp_path / "metrics.csv"
    place(path)
    assert "metrics.csv is not " in error_of(CsvTracker, path)
