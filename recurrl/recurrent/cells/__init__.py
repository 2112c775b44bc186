"""The recurrent cells: one module each, found by name.

A module's ``make(options)`` returns its :class:`~recurrl.recurrent.cell.Cell`; all options have a ``hidden_size``. To
add a cell, add a file here and a yaml, or write it in another package (see ``examples/extending``).
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import SimpleNamespace

from torch import nn

from recurrl.recurrent.cell import Cell
from recurrl.recurrent.gated import GatedCell


@cache
def cell_names() -> tuple[str, ...]:
    """Names of all cells of the package."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def make_cell(name: str, hidden_size: int, bias: bool = True, proj_size: int = 0) -> Cell:
    """Makes a cell of the package from torch's options.

    Raises:
        ValueError: there is no such cell, or it does not have one of the options.
    """
    if name not in cell_names():
        raise ValueError(f"Unknown cell {name!r}. Choose one of: {', '.join(cell_names())}.")
    options = SimpleNamespace(hidden_size=hidden_size, bias=bias, proj_size=proj_size)
    cell: Cell = importlib.import_module(f"{__name__}.{name}").make(options)
    if proj_size and cell.TORCH is not nn.LSTM:
        raise ValueError(f"proj_size={proj_size} is not supported by cell {name!r}, only by an LSTM. Leave it at 0.")
    if not bias and not isinstance(cell, GatedCell):
        raise ValueError(f"bias=False is not supported by cell {name!r}, which declares its own parameters.")
    return cell
