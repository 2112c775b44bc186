"""Errors addressed to the user."""

import shutil

from recurrl.errors import one_line


def test_an_error_about_several_files_has_the_reason_of_the_first():
    full = "[Errno 28] No space left on device: 'there/a'"
    assert one_line(shutil.Error([("a", "there/a", full), ("b", "there/b", "Permission denied")])) == full
    assert one_line(shutil.Error("a and b are the same file.")) == "a and b are the same file"
