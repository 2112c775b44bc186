"""How many lanes and warps a program of each kernel takes: by what was compiled, not tried at run time.

A fixed choice has no first-call stall and can be captured in a CUDA graph at once.
"""

from __future__ import annotations

from typing import NamedTuple


class Configuration(NamedTuple):
    """Of one kernel."""

    lanes: int
    """Lanes a program, BM; a product needs at least 16."""
    warps: int
    stages: int
    """Steps whose loads the compiler may start early. More than one costs the memory that the weights need."""


def configuration(hidden_size: int) -> Configuration:
    """For the kernels of this hidden size: the more of it, the more threads share its registers."""
    return Configuration(lanes=16, warps=8 if hidden_size > 32 else 4, stages=1)


LARGEST_HIDDEN = 128
"""The largest hidden size of any of them."""

_LARGEST = {
    ("gru", "ieee"): {80: 64, 90: 64},
    ("gru", "tf32"): {80: 64, 90: 128},
    ("gru", "tf32x3"): {80: 64, 90: 64},
    ("gru", "bf16"): {80: 128, 90: 128},
    ("lstm", "ieee"): {80: 64, 90: 64},
    ("lstm", "tf32"): {80: 64, 90: 64},
    ("lstm", "tf32x3"): {80: 64, 90: 64},
    ("lstm", "bf16"): {80: 128, 90: 128},
}


def largest_hidden(cell: str, precision: str, capability: tuple[int, int]) -> int:
    """The largest hidden size whose recurrent weights stay on the chip and whose threads spill nothing; 0 if none.

    Compute capability 9.0 and above have room for more than 8.x.
    """
    if capability < (8, 0):
        return 0
    return _LARGEST[cell, precision][90 if capability >= (9, 0) else 80]
