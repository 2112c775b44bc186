import os

import pytest

from recurrl.runtime.atomic import UNFINISHED, atomic_write, remove_unfinished, unfinished


def test_a_block_that_raises_leaves_the_old_contents_and_no_temporary_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write(f"half of the n{1 / 0}")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_contents_are_on_the_disk_before_they_take_the_place_of_the_old_ones(tmp_path, monkeypatch):
    path, events = tmp_path / "file.txt", []
    monkeypatch.setattr(os, "fsync", lambda file: events.append((os.fstat(file).st_size, path.read_text())))
    path.write_text("old")
    with atomic_write(path) as file:
        file.write("four")
        file.flush()
        assert path.read_text() == "old"
    assert events == [(4, "old")]
    assert path.read_text() == "four"


def test_a_link_is_replaced_and_not_what_it_points_to(tmp_path):
    (tmp_path / "elsewhere").write_text("kept")
    (tmp_path / "file.txt").symlink_to(tmp_path / "elsewhere")
    with atomic_write(tmp_path / "file.txt") as file:
        file.write("new")
    assert (tmp_path / "file.txt").read_text() == "new"
    assert (tmp_path / "elsewhere").read_text() == "kept"


def test_only_unfinished_files_of_our_own_are_removed(tmp_path):
    unfinished(tmp_path / "metrics.csv").touch()
    similar = (f"{UNFINISHED}x", f"{UNFINISHED}metrics.csv-0", f"{UNFINISHED}metrics.csv-{'g' * 32}")
    others = [tmp_path / name for name in (".metrics.csv.1.tmp", ".DS_Store", "recurrl-unfinished-x", *similar)]
    for path in others:
        path.touch()
    others += [unfinished(tmp_path / "link"), unfinished(tmp_path / "folder")]
    others[-2].symlink_to(others[0])
    others[-1].mkdir()
    remove_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)
