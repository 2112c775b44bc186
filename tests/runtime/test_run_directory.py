"""The directory of a run: what is in the way there."""

import os
from pathlib import Path

import pytest
from rejections import error_of

from recurrl.runtime.run_directory import check_unused

MAKE = {
    "link": lambda path: path.symlink_to(__file__),
    "dangling": lambda path: path.symlink_to("nothing"),
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "file": Path.touch,
}
IN_THE_WAY = [
    *((name, kind) for name in ("config.yaml", "summary.json", "metrics.csv") for kind in ("link", "folder", "pipe")),
    *((name, "file") for name in ("checkpoints", "tensorboard", "checkpoints/frames_000000000032")),
    ("checkpoints/frames_000000000032", "folder"),
    ("checkpoints", "dangling"),
]


@pytest.mark.parametrize(("name", "kind"), IN_THE_WAY)
def test_what_is_where_a_run_is_to_write_is_found_before_it_trains(tmp_path, name, kind):
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    MAKE[kind](path)
    error = error_of(check_unused, tmp_path / "run", is_resumed=False)
    assert error.startswith(f"{path} is ")
    assert "Move it away" in error
