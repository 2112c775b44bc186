"""The rule that chooses tiles, warps and pipeline stages, with no autotuning at run time.

A fixed choice has no first-call stall and can be captured in a CUDA graph at once. The rule keeps every kernel within
the registers and the shared memory of each architecture, as ahead-of-time compilation shows (docs/kernels.md). It has
not been timed on a GPU.
"""

from __future__ import annotations

from typing import Any

CELLS = ("gru", "lstm")
PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16")
MAX_HIDDEN_SIZE = 1024


def configuration(hidden_size: int, precision: str) -> dict[str, int]:
    """The tiles and options of the kernels of a layer of up to ``MAX_HIDDEN_SIZE`` features.

    A program has BM lanes and BH hidden units: all of them if its registers can hold them, else 64. A matmul has BK
    columns of the recurrent weights. ``num_stages`` is the number of blocks whose loads may be in flight.
    """
    units = max(16, 1 << (hidden_size - 1).bit_length())
    # Full float32 matmuls use no tensor cores. With other tiles, or a second block in flight, they spill registers.
    ieee = precision == "ieee"
    if ieee or units > 128:
        units = 64
    depth = 32 if units >= 64 and precision in ("tf32", "bf16") else 16
    options = {"num_warps": 8 if units >= 64 else 4, "num_stages": 1 if ieee else 2}
    # Without a bound ptxas prefers spilling some registers to running fewer programs at once.
    return {"BM": 16, "BH": units, "BK": depth, **options, "maxnreg": 255}


def constants(cell: str, hidden_size: int, precision: str) -> dict[str, Any]:
    """The compile-time constants and options of the kernels."""
    tiles = configuration(hidden_size, precision.removesuffix(" emulated"))
    return {"H": hidden_size, "LSTM": cell == "lstm", "PRECISION": precision, **tiles}
