"""The rule that chooses a layer's kernels, tiles, warps and pipeline stages, with no autotuning at run time.

A fixed choice has no first-call stall and can be captured in a CUDA graph at once. The rule keeps every kernel within
the registers and the shared memory of each architecture, as ahead-of-time compilation shows (docs/kernels.md). It has
not been timed on a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

CELLS = ("gru", "lstm")
PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16")
LARGEST_HIDDEN = 1024
SHARED_MEMORY = {80: 166_912, 86: 101_376, 90: 232_448, 100: 232_448}
"""Maximum bytes per program by compute capability (CUDA C++ programming guide); 86 stands for all that have so few."""

_GATES = {"gru": 3, "lstm": 4}
_WEIGHT_BYTES = {"ieee": 4, "tf32": 4, "tf32x3": 8, "bf16": 2}
# Full float32 matmuls use no tensor cores: their operands go through registers, which hold fewer weights.
_IEEE_BYTES = 49_152
_STATE_BYTES = 8_192
_DEPTH = {"ieee": 16, "tf32": 32, "tf32x3": 32, "bf16": 64}
_FEW_LANES = 512
_WARPS_AND_STAGES = {"ieee": (8, 2), "tf32": (4, 3), "tf32x3": (4, 2), "bf16": (4, 3)}
# With the usual ones, the compiler spills a few registers at some sizes.
_EXCEPTIONS = {
    ("gru", "ieee", 90): (4, 2),
    ("gru", "ieee", 100): (8, 3),
    ("lstm", "tf32", 100): (8, 3),
    ("gru", "tf32x3", 80): (4, 3),
    ("gru", "tf32x3", 86): (4, 3),
    ("lstm", "tf32x3", 100): (4, 3),
    ("gru", "bf16", 100): (8, 3),
}


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


def architecture(capability: tuple[int, int]) -> int | None:
    """The key of :data:`SHARED_MEMORY` for a compute capability, or None if the GPU is too old."""
    if capability < (8, 0):
        return None
    return {(8, 0): 80, (9, 0): 90, (10, 0): 100}.get(capability, 86)


def configuration(cell: str, hidden_size: int, precision: str, architecture: int, lanes: int) -> Configuration:
    """Resident weights where they fit, else one launch per step; for up to ``LARGEST_HIDDEN`` features."""
    units = max(16, 1 << (hidden_size - 1).bit_length())
    most = _IEEE_BYTES if precision == "ieee" else SHARED_MEMORY[architecture] - _STATE_BYTES
    if _GATES[cell] * units**2 * _WEIGHT_BYTES[precision] > most:
        return step_configuration(cell, hidden_size, precision, architecture, lanes)
    wide = (precision == "ieee" and units > 32) or (cell, units, architecture) == ("lstm", 32, 86)
    return Configuration(True, 16 if wide else 8, units, units, warps=4 if units <= 32 else 8, stages=1)


def step_configuration(cell: str, hidden_size: int, precision: str, architecture: int, lanes: int) -> Configuration:
    """The choice for one launch per step.

    With few lanes, only small tiles give every multiprocessor a program. Precise products need more registers.
    """
    depth, units = _DEPTH[precision], 32 if precision == "ieee" else 64
    warps, stages = _WARPS_AND_STAGES[precision]
    if lanes > _FEW_LANES and precision in ("tf32", "bf16"):
        return Configuration(False, 32, units, depth, 4 if architecture >= 90 else 8, stages)
    warps, stages = _EXCEPTIONS.get((cell, precision, architecture), (warps, stages))
    return Configuration(False, 16, units, depth, warps, stages)
