"""Adapts the pages for the site, where neither the README's folder nor the repository's other files exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).parent
_README = _DOCS.parent / "README.md"
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:]+)(#[^)]*)?\)")


def on_config(config: Any) -> None:
    """Lists the decisions."""
    (reference,) = (section["Reference"] for section in config.nav if "Reference" in section)
    reference[-1]["Decisions"] = sorted(path.relative_to(_DOCS).as_posix() for path in _DOCS.glob("decisions/*.md"))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The README as the first page; of links to files outside ``docs/`` only their text."""
    source = _DOCS / page.file.src_uri
    if page.is_homepage:
        source, markdown = _README, _README.read_text(encoding="utf-8").replace("](docs/images/", "](images/")

    def replaced(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        path = (source.parent / target).resolve()
        if path == _README:
            return f"[{text}](index.md)"
        if path.is_dir() or not path.is_relative_to(_DOCS):
            return text
        return f"[{text}]({path.relative_to(_DOCS).as_posix()}{anchor or ''})" if page.is_homepage else link[0]

    return _LINK.sub(replaced, markdown)
