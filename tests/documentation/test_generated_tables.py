"""Tables of the documentation are what scripts print: docs/configuration.md, docs/scaling.md."""

import re
import sys

from documented import ROOT

from recurrl.config import options
from recurrl.config.keys import packaged_keys
from recurrl.config.plugins import GROUPS, key_of
from scripts import scaling
from scripts.reference import reference


def test_the_documentation_of_the_keys_is_up_to_date():
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert page == reference(), "python scripts/reference.py > docs/configuration.md"


def test_it_has_every_key_once_a_choice():
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    sections = {key.partition(".")[0] for key in packaged_keys() if "." in key}
    names = {f"{group}.name" for group in GROUPS} - {key_of("env")}
    for key in packaged_keys() - sections - names:
        assert [row for row in rows if row.startswith(f"| `{key}` | ")], key


def test_the_table_of_ranges_says_what_each_takes():
    rows = re.findall(r"^\| (`[A-Z].*`) \| (an? .*?)[;|]", (ROOT / "docs/extending.md").read_text("utf-8"), re.M)
    words = {name: words.strip() for names, words in rows for name in re.findall(r"`(\w+)`", names)}
    assert words == {name: of.words for name, of in vars(options).items() if isinstance(of, options.Range)}
    assert options.Range(0, 1, below=True).words == "a number from 0 and below 1"


def test_the_table_of_the_estimates_is_what_the_script_prints(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scaling.py"])
    scaling.main()
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 6
    assert "\n".join(table) in (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
