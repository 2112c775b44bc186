"""The rule that chooses tiles, warps and pipeline stages, with no autotuning at run time.

A fixed choice has no first-call stall and can be captured in a CUDA graph at once. The rule keeps every kernel within
the registers and the shared memory of each architecture, as ahead-of-time compilation shows (docs/kernels.md). It has
not been timed on a GPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

CELLS = ("gru", "lstm")
PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16")
MAX_HIDDEN_SIZE = 1024


class Configuration(NamedTuple):
    """Launch configuration of one layer's kernels.

    Attributes:
        lanes: lanes per program, BM.
        units: hidden units per program, BH. If these are all units, one launch runs all steps.
        depth: columns of the recurrent weights per matmul, BK.
        warps: the number of warps of a program.
        stages: blocks whose loads may be in flight.
    """

    lanes: int
    units: int
    depth: int
    warps: int
    stages: int

    def constants(self, cell: str, hidden_size: int, precision: str) -> dict[str, Any]:
        """The kernels' compile-time constants and options."""
        tiles = {"BM": self.lanes, "BH": self.units, "BK": self.depth}
        layer = {"H": hidden_size, "LSTM": cell == "lstm", "PRECISION": precision}
        # Without a bound ptxas prefers spilling some registers to running fewer programs at once.
        return {**layer, **tiles, "num_warps": self.warps, "num_stages": self.stages, "maxnreg": 255}


def configuration(hidden_size: int, precision: str) -> Configuration:
    """The configuration for up to ``MAX_HIDDEN_SIZE`` features: a program has all of them if its registers can hold
    them, else 64.
    """
    units = max(16, 1 << (hidden_size - 1).bit_length())
    # Full float32 matmuls use no tensor cores. With other tiles, or a second block in flight, they spill registers.
    ieee = precision == "ieee"
    if ieee or units > 128:
        units = 64
    depth = 32 if units >= 64 and precision in ("tf32", "bf16") else 16
    return Configuration(16, units, depth, warps=8 if units >= 64 else 4, stages=1 if ieee else 2)
