"""docs/configuration.md, the tables of all keys."""

from documented import ROOT

from recurrl.config.keys import packaged_keys
from recurrl.config.plugins import GROUPS, key_of
from scripts.reference import reference

DOCS = ROOT / "docs" / "configuration.md"


def test_the_documentation_of_the_keys_is_up_to_date():
    assert DOCS.read_text(encoding="utf-8") == reference(), "python scripts/reference.py > docs/configuration.md"


def test_it_has_every_key_once_a_choice():
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    sections = {key.partition(".")[0] for key in packaged_keys() if "." in key}
    names = {f"{group}.name" for group in GROUPS} - {key_of("env")}
    for key in packaged_keys() - sections - names:
        assert [row for row in rows if row.startswith(f"| `{key}` | ")], key
