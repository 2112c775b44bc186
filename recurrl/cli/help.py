"""Explains the keys of a printed configuration, with the words of its schema."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf

from recurrl.config.composed import chosen_options
from recurrl.config.keys import FREE
from recurrl.config.options import Meaning, meaning_of
from recurrl.config.run import TrainConfig

KEYS = "Keys and their values (key=value):\n\n"
"""Precedes the configuration in the text of ``--help``."""
_COLUMN, _WIDTH = 36, 120


def meanings(schema: Any, chosen: Mapping[str, type], prefix: str = "") -> Iterator[tuple[str, Meaning]]:
    """The dotted keys of a schema, and what each means."""
    hints = {**get_type_hints(schema), **chosen}
    for field in fields(schema):
        key, kind = prefix + field.name, hints[field.name]
        if is_dataclass(kind):
            yield from meanings(kind, {}, f"{key}.")
        else:
            yield key, meaning_of(field)


def explained(printed: str) -> str:
    """A printed configuration, after any text of ``--help``, with comments that say what its keys mean."""
    before, marker, rest = printed.rpartition(KEYS)
    body, separator, after = rest.partition("\n\n")
    config: Any = OmegaConf.create(body)
    if not isinstance(config, DictConfig):
        return printed
    words = dict(meanings(TrainConfig, chosen_options(config)))
    path: list[str] = []
    lines = []
    for line in body.splitlines():
        found = re.match(r"( *)([\w.]+):", line)
        if found is not None:
            path[len(found[1]) // 2 :] = [found[2]]
        key = ".".join(path)
        asked = found is not None and not key.startswith(f"{FREE}.")
        lines += _commented(line, words[key].text if asked and key in words else "")
    return "".join([before, marker, "\n".join(lines), separator, after]) + ("" if separator else "\n")


def _commented(line: str, text: str) -> list[str]:
    if not text:
        return [line]
    column = max(_COLUMN, len(line) + 2)
    first, *more = textwrap.wrap(text, _WIDTH - column - 2)
    return [f"{line:<{column}}# {first}", *(f"{'':<{column}}# {each}" for each in more)]
