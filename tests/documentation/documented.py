"""The commands and snippets of README.md and docs/, as a reader would copy them."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
_PROGRAM = re.compile(
    r"^(?:[A-Z_]+=\S+ )*(?:python |recurrl-|pip |pytest|docker |sbatch |kubectl |mkdir |cd |mkdocs |ruff |torchrun "
    r"|bash |pre-commit )"
)


class Command(NamedTuple):
    """One command of a page.

    Attributes:
        page: relative to the repository.
        words: of the command, without variables before it.
        folder: that earlier commands of its block changed to.
    """

    page: str
    words: tuple[str, ...]
    folder: Path

    def __str__(self):
        return f"{self.page}: {shlex.join(self.words)}"


def commands():
    """Every command of the pages, in blocks of ``console`` after a ``$``, and in indented blocks."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        typed = [re.findall(r"^\$ (.*)", body, re.M) for tag, body in _BLOCK.findall(text) if tag == "console"]
        rest = _BLOCK.sub("", text)
        indented = [re.sub(r"^    ", "", block, flags=re.M) for block in _INDENTED.findall(rest)]
        for block in (*map("\n".join, typed), *indented):
            yield from _commands_of(page.relative_to(ROOT).as_posix(), block)


def _commands_of(page, block):
    folder = ROOT
    for line in block.replace("\\\n", " ").splitlines():
        if not _PROGRAM.match(line):
            continue
        for part in line.split(" && "):
            words = [word for word in shlex.split(part, comments=True) if not re.match(r"[A-Z_]+=", word)]
            if words[0] == "cd":
                folder = folder / words[1]
            yield Command(page, tuple(words), folder)


def snippets(language):
    """The page and the text of each block in a language."""
    for page in PAGES:
        for tag, body in _BLOCK.findall(page.read_text(encoding="utf-8")):
            if tag == language:
                yield page.relative_to(ROOT).as_posix(), body
