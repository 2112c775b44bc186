"""The lock of a run directory: one holder, by name, until its process has ended."""

import errno
import fcntl
import os
import re
import time

import pytest
from in_ranks import start
from rejections import error_of

from recurrl.errors import ConfigError
from recurrl.runtime.run_directory import LOCK, locked


def test_of_ten_processes_at_once_one_gets_the_directory_and_the_others_hear_of_it_at_once(tmp_path):
    def tried():
        deadline = time.monotonic() + 60
        try:
            with locked(tmp_path):
                while len(list(tmp_path.glob("rejected*"))) < 9 and time.monotonic() < deadline:
                    time.sleep(0.01)
                return None
        except ConfigError as error:
            (tmp_path / f"rejected {os.getpid()}").touch()
            return str(error)

    started = start(10, tried)
    messages = dict(zip(started.processes, started.end(), strict=True))
    (holder,) = [process for process, message in messages.items() if message is None]
    said = rf"is in use by (process {holder} on|another process)"  # which may not have written its name yet
    assert all(re.search(said, message) for process, message in messages.items() if process != holder)


@pytest.mark.parametrize("arguments", [[], ["fork"]], ids=["alone", "with a child that lives on"])
def test_the_lock_of_a_killed_process_is_free(tmp_path, holder, arguments):
    other = holder(tmp_path, *arguments)
    other.kill()
    other.wait()
    with locked(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / LOCK).read_text()


@pytest.mark.parametrize("content", [b"", b"\xff", b"process \x1b[2J", b"x" * 9000])
def test_a_holder_that_does_not_say_who_it_is_is_another_process(tmp_path, holder, content):
    holder(tmp_path)
    (tmp_path / LOCK).write_bytes(content)
    assert "in use by another process" in error_of(locked(tmp_path).__enter__)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_something_else_of_that_name_is_rejected_at_once(tmp_path, make):
    make(tmp_path / LOCK)
    with pytest.raises((ConfigError, IsADirectoryError)):
        locked(tmp_path).__enter__()


@pytest.mark.parametrize("content", [b"mine", b"process", b"\xff\0"])
def test_a_file_of_that_name_which_no_run_has_written_is_kept(tmp_path, content):
    (tmp_path / LOCK).write_bytes(content)
    assert "run.lock was not written by a run" in error_of(locked(tmp_path).__enter__)
    assert (tmp_path / LOCK).read_bytes() == content


def test_a_link_of_that_name_is_not_followed(tmp_path):
    (tmp_path / "other").write_text("mine")
    (tmp_path / LOCK).symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic link"):
        locked(tmp_path).__enter__()
    assert (tmp_path / "other").read_text() == "mine"


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    def lockf(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with locked(tmp_path):
        pass
    assert "a second run could use the directory at the same time" in caplog.text
