"""What docstrings and pages refer to exists."""

import ast
import pkgutil
import re
from contextlib import suppress

import pytest
from documented import PAGES, ROOT

MODULES = sorted((ROOT / "recurrl").rglob("*.py"))
REFERENCE = re.compile(r":(?:class|func|meth|attr|mod|data|exc):`~?([\w.]+)`")
PATH = re.compile(r"`((?:tests|recurrl|configs|scripts|benchmarks|examples)/[\w./-]+)`")


def exists(path):
    """True for a full name."""
    with suppress(ImportError, AttributeError):
        pkgutil.resolve_name(path)
        return True
    return False


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_references_of_docstrings_exist(path):
    text = path.read_text(encoding="utf-8")
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    nodes = list(ast.walk(ast.parse(text)))
    classes = [f"{module}.{node.name}" for node in nodes if isinstance(node, ast.ClassDef)]
    # Also what is imported for types alone.
    from_modules = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    imports = [f"{node.module}.{alias.name}" for node in from_modules for alias in node.names]
    for name in set(REFERENCE.findall(text)) - set(re.findall(r"self\.(\w+)", text)):
        first, _, rest = name.partition(".")
        imported = [f"{each}.{rest}".rstrip(".") for each in imports if each.endswith(f".{first}")]
        assert any(map(exists, [name, *imported, *(f"{owner}.{name}" for owner in [module, *classes])])), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_files_that_pages_name_exist(page):
    paths = PATH.findall(page.read_text(encoding="utf-8"))
    assert [path for path in paths if not list(ROOT.glob(path.rstrip("/")))] == []
