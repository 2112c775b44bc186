"""All dataclasses of options: those of the package, and those of the examples."""

import importlib
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import NamedTuple, Union, get_args, get_origin, get_type_hints

from recurrl.config import TrainConfig
from recurrl.config.options import meaning_of
from recurrl.config.plugins import GROUPS, PACKAGED_OPTIONS, base_options

EXAMPLES = Path(__file__).parents[2] / "examples" / "extending"


class Option(NamedTuple):
    """A field of a dataclass of options, and its key."""

    cls: type
    field: Field
    key: str
    kinds: tuple
    """The types of its values, or of the entries of its lists, without None."""

    @property
    def meaning(self):
        return meaning_of(self.field)

    def __str__(self):
        return f"{self.cls.__name__}.{self.field.name}"

    def options(self, value):
        """The dataclass with this value and no others."""
        made = object.__new__(self.cls)
        for field in fields(self.cls):
            setattr(made, field.name, value if field.name == self.field.name else None)
        return made


def example_modules():
    """The modules of the examples."""
    return [importlib.import_module(f"my_package.{path.stem}") for path in sorted(EXAMPLES.glob("my_package/*.py"))]


def _classes():
    yield "", TrainConfig
    for name, kind in get_type_hints(TrainConfig).items():
        if is_dataclass(kind) and name not in GROUPS:
            yield f"{name}.", kind
    for group in GROUPS:
        yield f"{group}.", base_options(group)
        yield from ((f"{group}.", options) for options in PACKAGED_OPTIONS[group].values())
    for module in example_modules():
        for cls in vars(module).values():
            if isinstance(cls, type) and is_dataclass(cls) and cls.__module__ == module.__name__:
                yield from ((f"{group}.", cls) for group in GROUPS if issubclass(cls, base_options(group)))


def _kinds(hint):
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for each in get_args(hint) for kind in _kinds(each) if kind is not type(None))
    return get_args(hint) if get_origin(hint) is list else (hint,)


def _options():
    for prefix, cls in _classes():
        hints = get_type_hints(cls)
        for field in fields(cls):
            if not is_dataclass(hints[field.name]):
                yield Option(cls, field, prefix + field.name, _kinds(hints[field.name]))


OPTIONS = list(_options())
