"""The estimates of docs/scaling.md."""

import sys
from dataclasses import replace

import pytest
from documented import ROOT

from scripts import scaling

DOCS = ROOT / "docs" / "scaling.md"


def test_the_table_of_the_documentation_is_what_the_script_prints(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scaling.py"])
    scaling.main()
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 6
    assert "\n".join(table) in DOCS.read_text(encoding="utf-8")


def test_an_all_reduce_between_two_ranks_of_a_node_is_what_the_formula_says():
    machine = replace(scaling.Machine(), parameters=2.0, near=4.0, near_us=10.0)
    # Half of 8 MB twice at 4 GB/s, and two messages.
    assert machine.all_reduce_s(2) == pytest.approx(2 * (4e6 / 4e9 + 10e-6))
    assert machine.all_reduce_s(1) == 0
