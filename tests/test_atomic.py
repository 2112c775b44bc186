import os

import pytest

from recurrl.atomic import atomic_write


def test_readers_see_the_old_contents_until_the_block_ends(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with atomic_write(path) as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_a_block_that_raises_leaves_the_old_contents_and_no_temporary_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write(f"half of the n{1 / 0}")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_any_other_new_file_gets(tmp_path):
    ordinary = tmp_path / "ordinary.txt"
    ordinary.touch()
    with atomic_write(tmp_path / "atomic.txt") as file:
        file.write("text")
    assert (tmp_path / "atomic.txt").stat().st_mode == ordinary.stat().st_mode


def test_contents_are_on_the_disk_before_they_take_the_place_of_the_old_ones(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(os.fstat(descriptor).st_size))
    with atomic_write(tmp_path / "file.txt") as file:
        file.write("four")
        assert not (tmp_path / "file.txt").exists()
    assert events == [4]
