"""How many lanes and warps a program of each kernel takes: by what was compiled, not tried at run time.

A fixed choice has no first-call stall and can be captured in a CUDA graph at once.
"""

from __future__ import annotations

from typing import NamedTuple


class Configuration(NamedTuple):
    """Of one kernel."""

    lanes: int
    """Lanes a program, BM."""
    warps: int
    stages: int
    """Steps whose loads the compiler may start early. More than one costs the memory that the weights need."""


def configuration(hidden_size: int, precision: str) -> Configuration:
    """For the kernels of this hidden size and precision, so that no thread spills."""
    # Products of full float32 spread over the lanes, those of tensor cores do not.
    lanes = 16 if precision == "ieee" and hidden_size > 32 else 8
    return Configuration(lanes=lanes, warps=4 if hidden_size <= 32 else 8, stages=1)


LARGEST_HIDDEN = 128
"""The largest hidden size of any of them."""

# By compute capability: 86 stands for those with 99 KB of shared memory a program.
_LARGEST = {
    ("gru", "ieee"): {80: 64, 86: 64, 90: 64, 100: 64},
    ("gru", "tf32"): {80: 64, 86: 64, 90: 128, 100: 128},
    ("gru", "tf32x3"): {80: 64, 86: 32, 90: 64, 100: 64},
    ("gru", "bf16"): {80: 128, 86: 64, 90: 128, 100: 128},
    ("lstm", "ieee"): {80: 64, 86: 64, 90: 64, 100: 64},
    ("lstm", "tf32"): {80: 64, 86: 64, 90: 64, 100: 64},
    ("lstm", "tf32x3"): {80: 64, 86: 32, 90: 64, 100: 64},
    ("lstm", "bf16"): {80: 128, 86: 64, 90: 128, 100: 128},
}


def largest_hidden(cell: str, precision: str, capability: tuple[int, int]) -> int:
    """The largest hidden size whose recurrent weights stay on the chip and whose threads spill nothing; 0 if none."""
    if capability < (8, 0):
        return 0
    known = {(8, 0): 80, (9, 0): 90, (10, 0): 100}
    return _LARGEST[cell, precision][known.get(capability, 86)]


def entries() -> list[tuple[str, str, int, int]]:
    """``(cell, precision, architecture, largest hidden size)`` of every entry of the table."""
    return [(*key, architecture, size) for key, sizes in _LARGEST.items() for architecture, size in sizes.items()]
