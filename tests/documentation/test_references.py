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


def docstrings(path):
    """Each docstring of a module, with the names of the classes around it."""

    def inside(node, classes):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield text, classes
        for child in ast.iter_child_nodes(node):
            yield from inside(child, [*classes, child.name] if isinstance(child, ast.ClassDef) else classes)

    return inside(ast.parse(path.read_text(encoding="utf-8")), [])


def imports(path):
    """The full names of what a module imports by ``from``, also for its types alone."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


def exists(name, module, classes, imported):
    """True for a full name, one of the module or its imports, or an attribute of a class around the docstring."""
    first, _, rest = name.partition(".")
    paths = [name, f"{module}.{name}", f"{imported.get(first, first)}.{rest}".rstrip(".")]
    paths += [".".join((module, *classes[:depth], name)) for depth in range(1, len(classes) + 1)]
    for path in paths:
        with suppress(ImportError, AttributeError):
            pkgutil.resolve_name(path)
            return True
    return False


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_references_of_docstrings_exist(path):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    assigned = re.findall(r"self\.(\w+)", path.read_text(encoding="utf-8"))
    references = [(name, classes) for text, classes in docstrings(path) for name in REFERENCE.findall(text)]
    missing = [name for name, classes in references if not exists(name, module, classes, imports(path))]
    assert set(missing) <= set(assigned)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_files_that_pages_name_exist(page):
    paths = PATH.findall(page.read_text(encoding="utf-8"))
    assert [path for path in paths if not list(ROOT.glob(path.rstrip("/")))] == []
