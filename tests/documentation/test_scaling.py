"""The estimates of docs/scaling.md."""

import sys

from documented import ROOT

from scripts import scaling

DOCS = ROOT / "docs" / "scaling.md"


def test_the_table_of_the_documentation_is_what_the_script_prints(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scaling.py"])
    scaling.main()
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 6
    assert "\n".join(table) in DOCS.read_text(encoding="utf-8")
