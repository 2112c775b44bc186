"""How the recurrence is launched: by what was compiled, not tried at run time.

A fixed choice has no first-call stall and can be captured in a CUDA graph at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

CELLS = ("gru", "lstm")
PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16")
ARCHITECTURES = (80, 86, 90, 100)
"""Compute capabilities. 86 stands for those with 99 KB of shared memory a program."""
LARGEST_HIDDEN = 1024


class Configuration(NamedTuple):
    """Of the kernels of one layer."""

    resident: bool
    """Whether the recurrent weights stay on the chip for a whole sequence; else there is one launch a step."""
    lanes: int
    """Lanes a program, BM."""
    units: int
    """Hidden units a program, BH: with resident weights all, rounded up to a power of two."""
    depth: int
    """Columns of the recurrent weights that one product takes, BK: with resident weights all."""
    warps: int
    stages: int
    """Blocks whose loads may be under way at once. More than one costs the memory that resident weights need."""


# The largest hidden size whose recurrent weights stay on the chip and whose threads spill nothing.
_LARGEST_RESIDENT = {
    ("gru", "ieee"): {80: 64, 86: 64, 90: 64, 100: 64},
    ("gru", "tf32"): {80: 64, 86: 64, 90: 128, 100: 128},
    ("gru", "tf32x3"): {80: 64, 86: 32, 90: 64, 100: 64},
    ("gru", "bf16"): {80: 128, 86: 64, 90: 128, 100: 128},
    ("lstm", "ieee"): {80: 64, 86: 64, 90: 64, 100: 64},
    ("lstm", "tf32"): {80: 64, 86: 64, 90: 64, 100: 64},
    ("lstm", "tf32x3"): {80: 64, 86: 32, 90: 64, 100: 64},
    ("lstm", "bf16"): {80: 128, 86: 64, 90: 128, 100: 128},
}

# Of the kernels of one step, by the lanes there are: the first bucket that they do not exceed. Sums of products are in
# registers before architecture 90, where larger tiles spill.
_STEP: dict[str, Mapping[int | None, tuple[int, int, int, int, int]]] = {
    "ieee": {256: (16, 32, 16, 4, 2), None: (32, 32, 16, 8, 2)},
    "tf32": {512: (16, 64, 32, 8, 3), 2048: (32, 64, 32, 4, 3), None: (64, 64, 32, 8, 3)},
    "tf32x3": {512: (16, 64, 32, 4, 2), None: (32, 64, 32, 4, 2)},
    "bf16": {512: (16, 64, 64, 4, 3), 2048: (32, 64, 64, 4, 3), None: (64, 64, 64, 8, 3)},
}
_STEP_BEFORE_90: dict[str, Mapping[int | None, tuple[int, int, int, int, int]]] = {
    "ieee": _STEP["ieee"],
    "tf32": {512: (16, 64, 32, 4, 3), None: (32, 64, 32, 4, 3)},
    "tf32x3": {None: (16, 64, 32, 4, 2)},
    "bf16": {512: (16, 64, 64, 4, 3), None: (32, 64, 64, 4, 3)},
}


def architecture(capability: tuple[int, int]) -> int | None:
    """The entry of the table for a GPU of this compute capability, or None if it is too old for any kernel."""
    if capability < (8, 0):
        return None
    return {(8, 0): 80, (9, 0): 90, (10, 0): 100}.get(capability, 86)


def configuration(cell: str, hidden_size: int, precision: str, architecture: int, lanes: int) -> Configuration:
    """For a layer of this cell and size on that many lanes."""
    if hidden_size <= largest_resident(cell, precision, architecture):
        units = max(16, 1 << (hidden_size - 1).bit_length())
        # Products of full float32 spread over the lanes, those of tensor cores do not.
        width = 16 if precision == "ieee" and units > 32 else 8
        return Configuration(True, width, units, units, warps=4 if units <= 32 else 8, stages=1)
    return step_configuration(precision, architecture, lanes)


def largest_resident(cell: str, precision: str, architecture: int) -> int:
    """The largest hidden size whose recurrent weights stay on the chip."""
    return _LARGEST_RESIDENT[cell, precision][architecture]


def step_configuration(precision: str, architecture: int, lanes: int) -> Configuration:
    """For one launch a step, of any cell and hidden size."""
    shapes = _step_shapes(precision, architecture)
    return Configuration(False, *next(shape for most, shape in shapes.items() if most is None or lanes <= most))


def _step_shapes(precision: str, architecture: int) -> Mapping[int | None, tuple[int, int, int, int, int]]:
    return (_STEP_BEFORE_90 if architecture < 90 else _STEP)[precision]


def buckets(precision: str, architecture: int) -> list[int]:
    """Numbers of lanes, one in each bucket of the kernels of one step."""
    return [2**20 if most is None else most for most in _step_shapes(precision, architecture)]


def entries() -> list[tuple[str, str, int, int]]:
    """``(cell, precision, architecture, largest resident hidden size)`` of every entry of the table."""
    return [
        (*key, architecture, size) for key, sizes in _LARGEST_RESIDENT.items() for architecture, size in sizes.items()
    ]
