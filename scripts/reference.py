"""Writes docs/configuration.md, the tables of all keys: ``python scripts/reference.py > docs/configuration.md``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml  # type: ignore[import-untyped]

from recurrl.config.keys import SYNONYMS, flow, keys_of
from recurrl.config.options import Meaning, words_of
from recurrl.config.plugins import GROUPS, PACKAGED_OPTIONS, base_options, default_name, yaml_names, yaml_values

_CONFIGS = files("recurrl.configs")
_HEAD = """# Configuration

<!-- Written by `python scripts/reference.py > docs/configuration.md`. -->

Write keys as `key=value` and groups as `group=choice`. `recurrl-train --cfg job ...` shows the same texts for the keys
of one run, `--help` those of the main ones. For your YAML files, add `--config-dir DIR`: `DIR/cell/mine.yaml` is
`cell=mine` ([what is in it](extending.md#options-names-and-yamls)).

All groups but `experiment` and `hparams_search` also take `package.module:Name`: a custom
class or function whose first parameter is annotated with the dataclass of its options.
[Extending recurrl](extending.md) has the steps.
"""
Option = tuple[str, Any, Meaning]


def reference() -> str:
    """The text of docs/configuration.md."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(_lines())).rstrip() + "\n"


def _lines() -> Iterator[str]:
    options = _options()
    run = yaml.safe_load((_CONFIGS / "train.yaml").read_text(encoding="utf-8"))
    yield from (_HEAD, "## Keys of a run", "")
    yield from _table((option for option in options if "." not in option[0]), {"": run})
    for group in dict.fromkeys(key.partition(".")[0] for key, _, _ in options if "." in key):
        yield from ("", f"## `{group}`", "")
        group_options = [option for option in options if option[0].startswith(f"{group}.")]
        yield from _group(group, group_options) if group in GROUPS else _table(group_options, {"": run[group]})
    yield from ("", "## `experiment`", "", "Tuned sets of choices and values.", "", *_choices("experiment", None))
    yield from ("", "## `hparams_search`", "", "Search spaces for `-m`, with Optuna.", "")
    yield from _choices("hparams_search", None)
    yield from ("", "## Names in other libraries", "", "| there | here |", "|---|---|")
    ours = {theirs: hint.partition(",") for theirs, hint in SYNONYMS.items()}
    yield from (f"| `{theirs}` | `{key}`{comma}{rest} |" for theirs, (key, comma, rest) in ours.items())


def _options(chosen: Mapping[str, type] = MappingProxyType({})) -> list[Option]:
    return [(key, *of) for key, of in keys_of(chosen=chosen).items() if not is_dataclass(of[0])]


def _group(group: str, shared: list[Option]) -> Iterator[str]:
    yield from (*_choices(group, default_name(group)), "")
    # The other environments change few of these values.
    names = ["gym", *PACKAGED_OPTIONS[group]] if group == "env" else yaml_names(group)
    choices = {name: yaml_values(group, name) for name in names}
    shared_choices = {"gym": choices["gym"]} if group == "env" else choices
    yield from _table((option for option in shared if option[0] != f"{group}.name"), shared_choices)
    keys = {key for key, _, _ in shared}
    for name, of in choices.items():
        options = _options({group: PACKAGED_OPTIONS[group].get(name, base_options(group))})
        own = [option for option in options if option[0].startswith(f"{group}.") and option[0] not in keys]
        if own:
            yield from ("", f"With `{group}={name}` also:", "", *_table(own, {name: of}))


def _choices(group: str, default: str | None) -> Iterator[str]:
    yield from ("| choice | |", "|---|---|")
    for name in yaml_names(group):
        lines = (_CONFIGS / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        remarks = [line.removeprefix("# ") for line in lines if line.startswith("# ") and "@package" not in line]
        yield f"| `{name}`{' (default)' if name == default else ''} | {' '.join(remarks)} |"


def _table(options: Iterable[Option], choices: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A row for each key, with its values in the choices as defaults."""
    rows = [
        f"| `{key}` | {_defaults(key.rpartition('.')[2], choices)} | {_values(kind, meaning)} | {meaning.text} |"
        for key, kind, meaning in options
    ]
    if rows:
        yield from ("| key | default | values | meaning |", "|---|---|---|---|", *rows)


def _defaults(key: str, choices: Mapping[str, Mapping[str, Any]]) -> str:
    names: dict[str, list[str]] = {}
    for name, of in choices.items():
        names.setdefault("required" if of[key] == "???" else f"`{flow(of[key])}`", []).append(name)
    usual, *others = sorted(names, key=lambda value: -len(names[value]))
    return ", ".join([usual, *(f"{value} ({', '.join(names[value])})" for value in others)])


def _values(kind: Any, meaning: Meaning) -> str:
    choices = [f"`{choice}`" for choice in meaning.choices]
    return words_of(kind, meaning._replace(choices=choices)).removeprefix("one of ")


if __name__ == "__main__":
    sys.stdout.write(reference())
