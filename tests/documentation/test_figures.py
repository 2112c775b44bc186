"""Figures in the README and in get-started.md are those of docs/benchmarks.md and of the table of peers."""

import re

import pytest
from documented import ROOT

README, STARTED, BENCHMARKS, MEASURED = (
    (ROOT / page).read_text(encoding="utf-8")
    for page in ("README.md", "docs/get-started.md", "docs/benchmarks.md", "docs/train/train.md")
)
ROW = re.compile(r"^\| 8 \| (\w+) \| (?:gru|lstm) \| .*", re.MULTILINE)


def ratios(loop):
    """recurrl's frames/s over those of a peer, with each cell."""
    rows = [row[0].split(" | ") for row in ROW.finditer(MEASURED) if row[1] == loop]
    return sorted(float(row[7]) for row in rows)


@pytest.mark.parametrize("page", [README, STARTED], ids=["README", "get-started"])
def test_the_last_line_of_the_default_run_is_the_measured_one(page):
    line = re.compile(r"^\d+ frames in .* s of training; .*", re.MULTILINE)
    assert line.findall(page) == line.findall(BENCHMARKS)


def test_the_readme_has_the_speeds_of_the_table_of_peers():
    text = " ".join(README.split())
    (sb3,), skrl, torchrl = (ratios(loop) for loop in ("sb3_contrib", "skrl", "torchrl"))
    assert f"{sb3} times the frames/s of sb3-contrib's RecurrentPPO" in text
    assert f"{skrl[0]} to {skrl[1]} times those of skrl" in text
    assert f"{torchrl[0]:.0f} to {torchrl[1]:.0f} times those of TorchRL's own loop" in text
