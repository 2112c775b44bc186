"""Prints a configuration with a comment on each key, in the words of its schema."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf

from recurrl.config.composed import chosen_options, plain, with_defaults
from recurrl.config.keys import keys_of

KEYS = "Keys and their values (key=value):\n\n"
"""Precedes the configuration in the text of ``--help``."""
_COLUMN, _WIDTH = 36, 120


def explained(printed: str) -> str:
    """A printed configuration, after any text of ``--help``, with comments that say what its keys mean.

    Raises:
        ConfigError: a key or a value is wrong.
    """
    before, marker, rest = printed.rpartition(KEYS)
    body, separator, after = rest.partition("\n\n")
    config: Any = OmegaConf.create(body)
    if not isinstance(config, DictConfig):
        return printed
    chosen = chosen_options(config)
    texts = {key: meaning.text for key, kind, meaning in keys_of(chosen=chosen) if not is_dataclass(kind)}
    values = plain(with_defaults(config, chosen), resolve=False)
    before = re.sub(r"^(\w+): .{120,}", lambda line: _wrapped(line[0], len(line[1]) + 2), before, flags=re.MULTILINE)
    return "".join([before, marker, "\n".join(_lines(values, texts)), separator, after or "\n"])


def flow(value: Any) -> str:
    """A value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).removesuffix("...\n").strip()


def _lines(values: Mapping[str, Any], texts: Mapping[str, str], prefix: str = "") -> Iterator[str]:
    # Plain keys first, then groups.
    for key, value in sorted(values.items(), key=lambda item: f"{prefix}{item[0]}" not in texts):
        path, indent = f"{prefix}{key}", "  " * prefix.count(".")
        if path in texts:
            yield from _commented(f"{indent}{key}: {flow(value)}", texts[path])
        else:
            yield f"{indent}{key}:"
            yield from _lines(value, texts, f"{path}.")


def _commented(line: str, text: str) -> Iterator[str]:
    if not text:
        yield line
        return
    column = max(_COLUMN, len(line) + 2)
    first, *more = textwrap.wrap(text, max(40, _WIDTH - column - 2))
    yield f"{line:<{column}}# {first}"
    yield from (f"{'':<{column}}# {each}" for each in more)


def _wrapped(line: str, indent: int) -> str:
    return textwrap.fill(line, _WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)
