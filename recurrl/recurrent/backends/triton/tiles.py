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
_STAGES = {"ieee": 2, "tf32": 3, "tf32x3": 2, "bf16": 3}
_FEW_LANES = 512


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
    wide = precision == "ieee" and units > 32
    return Configuration(True, 16 if wide else 8, units, units, warps=4 if _GATES[cell] * units <= 96 else 8, stages=1)


def step_configuration(cell: str, hidden_size: int, precision: str, architecture: int, lanes: int) -> Configuration:
    """The choice for one launch per step.

    With few lanes, only small tiles give every multiprocessor a program. Precise products need more registers.
    """
    few = lanes <= _FEW_LANES or precision in ("ieee", "tf32x3")
    units = 32 if precision == "ieee" else 64
    warps = 4 if few and precision != "ieee" else 8
    return Configuration(False, 16 if few else 32, units, _DEPTH[precision], warps, _STAGES[precision])
