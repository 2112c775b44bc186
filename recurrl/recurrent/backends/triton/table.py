"""Launch configurations from a precomputed table, with no autotuning at run time.

A fixed choice has no first-call stall and can be captured in a CUDA graph at once. The table is ``table.json`` beside
this file, or the file named by ``RECURRL_TRITON_TABLE``. ``scripts/benchmark.py tune`` writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

CELLS = ("gru", "lstm")
PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16")
ARCHITECTURES = (80, 86, 90, 100)
"""Compute capabilities. 86 stands for those with 99 KB of shared memory per program."""
LARGEST_HIDDEN = 1024
VARIABLE = "RECURRL_TRITON_TABLE"
"""Environment variable that overrides the table's path."""
ANY_NUMBER = 2**20


class Configuration(NamedTuple):
    """Launch configuration of one layer's kernels."""

    resident: bool
    """Keep the recurrent weights on the chip for a whole sequence; otherwise launch once per step."""
    lanes: int
    """Lanes per program, BM."""
    units: int
    """Hidden units per program, BH; with resident weights all, rounded up to a power of two."""
    depth: int
    """Columns of the recurrent weights per matmul, BK; with resident weights all."""
    warps: int
    stages: int
    """Blocks whose loads may be in flight. More than one costs the memory that resident weights need."""


class Row(NamedTuple):
    """A configuration and the layers it applies to."""

    cell: str
    precision: str
    architecture: int
    most_hidden: int
    """The largest hidden size."""
    most_lanes: int | None
    """Maximum lanes of a launch; None for any number."""
    configuration: Configuration

    def covers(self, hidden_size: int, lanes: int) -> bool:
        """True if the row's limits are not exceeded."""
        return hidden_size <= self.most_hidden and (self.most_lanes is None or lanes <= self.most_lanes)


@dataclass(frozen=True)
class Table:
    """Rows in order of preference: the first that covers a layer applies.

    Raises:
        ValueError: a row is invalid or never chosen, or some layer has no row with one launch per step.
    """

    sources: Mapping[int, str]
    """By architecture: how the configurations were chosen."""
    rows: Sequence[Row]

    def __post_init__(self) -> None:
        for index, row in enumerate(self.rows):
            fault = _fault(row) or _fault_of_order(row, self.rows[:index])
            if fault is not None:
                raise ValueError(f"Row {index + 1} of the triton kernel table, {_flat(row)}: {fault}.")
        for cell, precision, architecture in ((c, p, a) for c in CELLS for p in PRECISIONS for a in ARCHITECTURES):
            of_layer = self.of(cell, precision, architecture)
            steps = [row for row in of_layer if not row.configuration.resident]
            if architecture not in self.sources or not any(row.covers(LARGEST_HIDDEN, ANY_NUMBER) for row in steps):
                raise ValueError(
                    f"The triton kernel table needs a source for architecture={architecture}, and for cell={cell}, "
                    f"precision={precision} a row with one launch per step that covers {LARGEST_HIDDEN} features and "
                    "any number of lanes."
                )

    def of(self, cell: str, precision: str, architecture: int) -> list[Row]:
        """The rows of this cell, precision and architecture."""
        return self._by_layer.get((cell, precision, architecture), [])

    @cached_property
    def _by_layer(self) -> dict[tuple[str, str, int], list[Row]]:
        found: dict[tuple[str, str, int], list[Row]] = {}
        for row in self.rows:
            found.setdefault(row[:3], []).append(row)
        return found

    def to_json(self) -> str:
        """JSON for :func:`read`, one row per line."""
        rows = ",\n  ".join(json.dumps(_flat(row)) for row in self.rows)
        sources = json.dumps({str(architecture): source for architecture, source in self.sources.items()}, indent=2)
        return f'{{\n"sources": {sources},\n"columns": {json.dumps(_COLUMNS)},\n"rows": [\n  {rows}\n]\n}}\n'


_COLUMNS = [*Row._fields[:-1], *Configuration._fields]


def read(path: Path) -> Table:
    """Reads a table.

    Raises:
        ValueError: the file is missing, or not a valid table.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["columns"] != _COLUMNS:
            raise ValueError(f"its columns must be {_COLUMNS}")
        rows = [Row._make((*values[:5], Configuration(*values[5:]))) for values in held["rows"]]
        return Table({int(architecture): source for architecture, source in held["sources"].items()}, rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a valid triton kernel table: {error}. Write one with scripts/benchmark.py tune, or "
            f"unset {VARIABLE}."
        ) from error


def current() -> Table:
    """The table in use."""
    return _read_once(os.environ.get(VARIABLE))


@cache
def _read_once(path: str | None) -> Table:
    return read(Path(__file__).with_name("table.json") if path is None else Path(path))


_forced: list[Configuration] = []


@contextmanager
def forced(configuration: Configuration) -> Iterator[None]:
    """Context manager that uses this configuration for all layers it fits, overriding the table."""
    _forced.append(configuration)
    try:
        yield
    finally:
        _forced.pop()


def architecture(capability: tuple[int, int]) -> int | None:
    """The table's architecture for a compute capability, or None if the GPU is too old."""
    if capability < (8, 0):
        return None
    return {(8, 0): 80, (9, 0): 90, (10, 0): 100}.get(capability, 86)


def configuration(cell: str, hidden_size: int, precision: str, architecture: int, lanes: int) -> Configuration:
    """The configuration for a layer of up to ``LARGEST_HIDDEN`` features on this many lanes."""
    if _forced:
        return _forced[-1]
    of_layer = current().of(cell, precision, architecture)
    return next(row.configuration for row in of_layer if row.covers(hidden_size, lanes))


def step_configuration(cell: str, hidden_size: int, precision: str, architecture: int, lanes: int) -> Configuration:
    """Like :func:`configuration`, restricted to one launch per step."""
    if _forced and not _forced[-1].resident:
        return _forced[-1]
    of_layer = (row for row in current().of(cell, precision, architecture) if not row.configuration.resident)
    return next(row.configuration for row in of_layer if row.covers(hidden_size, lanes))


def _flat(row: Row) -> list[object]:
    return [*row[:-1], *row.configuration]


def _fault(row: Row) -> str | None:
    """Why a row is invalid, or None."""
    chosen = row.configuration
    if row.cell not in CELLS or row.precision not in PRECISIONS or row.architecture not in ARCHITECTURES:
        return f"choose from {CELLS}, {PRECISIONS} and {ARCHITECTURES}"
    numbers = [row.most_hidden, *chosen[1:], 1 if row.most_lanes is None else row.most_lanes]
    if type(chosen.resident) is not bool or any(type(number) is not int or number < 1 for number in numbers):
        return "resident must be true or false, and all other values integers from 1"
    if any(size & (size - 1) for size in (chosen.lanes, chosen.units, chosen.depth, chosen.warps)):
        return "lanes, units, depth and warps must be powers of two"
    if min(chosen.units, chosen.depth) < 16:
        return "units and depth must be at least 16"
    if chosen.resident and not row.most_hidden <= chosen.units == chosen.depth:
        return "resident weights need units and depth that cover all features at once"
    if row.most_hidden > LARGEST_HIDDEN:
        return f"the kernels support at most {LARGEST_HIDDEN} features"
    return None


def _fault_of_order(row: Row, before: Sequence[Row]) -> str | None:
    lanes = ANY_NUMBER if row.most_lanes is None else row.most_lanes
    for other in before:
        same = other[:3] == row[:3] and other.configuration.resident == row.configuration.resident
        if same and other.covers(row.most_hidden, lanes):
            return f"it is never chosen, because {_flat(other)} before it covers the same layers"
    return None
