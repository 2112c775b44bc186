"""Kernels with the compile-time constants of a configuration.

Used by the operators and by ahead-of-time compilation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from recurrl.recurrent.backends.triton import kernels, table
from recurrl.recurrent.backends.triton.table import Configuration

# All other arguments are pointers to float32.
_KINDS = {
    "starts": "*i8",
    "lane_begin": "*i64",
    "lane_length": "*i32",
    "slots": "*i64",
    **dict.fromkeys(("t", "first", "last", "lanes", "lanes_after", "slot_here", "slot_after", "part"), "i32"),
    "stored_stride": "i32",
}


class Launch(NamedTuple):
    """A kernel and its compile-time constants."""

    kernel: Any
    """The triton function."""
    constants: dict[str, Any]
    options: dict[str, int]
    """``num_warps`` and ``num_stages``."""

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.__name__

    def blocks(self, lanes: int) -> int:
        """Number of programs for this many lanes."""
        return -(-lanes // self.constants["BM"])

    def run(self, size: tuple[int, int], *arguments: Tensor | int) -> None:
        """Launches the programs for ``(lanes, hidden units)``."""
        lanes, units = size
        grid = (self.blocks(lanes), -(-units // self.constants.get("BH", units)))
        self.kernel[grid](*arguments, **self.constants, **self.options)

    @property
    def signature(self) -> dict[str, str]:
        """The type of each argument, for ``triton.compiler.ASTSource``."""
        kinds = _KINDS | dict.fromkeys(self.constants, "constexpr")
        if self.constants["PRECISION"] == "bf16":
            kinds |= {"w_hh": "*bf16", "w_hh_t": "*bf16"}
        return {name: kinds.get(name, "*fp32") for name in self.kernel.arg_names}

    @property
    def aligned(self) -> list[str]:
        """Arguments divisible by 16 whenever the hidden size is, as at run time."""
        pointers = [name for name, kind in self.signature.items() if kind.startswith("*")]
        return [*pointers, "stored_stride"] if self.constants["H"] % 16 == 0 else pointers


def forward(
    chosen: Configuration,
    cell: str,
    hidden: int,
    precision: str,
    *,
    has_bias: bool,
    keep: bool,
    recompute: bool = False,
) -> Launch:
    """The forward kernel; to ``recompute`` gates, ``chosen`` must be a step configuration."""
    constants: dict[str, Any] = {"HAS_BIAS": has_bias, "KEEP": keep}
    if chosen.resident:
        return _launch(kernels.resident_forward, chosen, cell, hidden, precision, constants)
    return _launch(kernels.step_forward, chosen, cell, hidden, precision, constants | {"RECOMPUTE": recompute})


def backward(
    chosen: Configuration,
    cell: str,
    hidden: int,
    precision: str,
    *,
    wants_stored: bool,
    window: bool,
    after: bool = True,
    here: bool = True,
) -> Launch:
    """The backward kernel. ``after`` and ``here`` select the two parts of the step kernel."""
    constants: dict[str, Any] = {"WANTS_STORED": wants_stored, "WINDOW": window}
    if chosen.resident:
        return _launch(kernels.resident_backward, chosen, cell, hidden, precision, constants)
    constants |= {"AFTER": after, "HERE": here}
    return _launch(kernels.step_backward, chosen, cell, hidden, precision, constants)


def _launch(
    kernel: Any, chosen: Configuration, cell: str, hidden: int, precision: str, constants: dict[str, Any]
) -> Launch:
    tiles = {"HP": chosen.units} if chosen.resident else {"BH": chosen.units, "BK": chosen.depth}
    common = {"H": hidden, "BM": chosen.lanes, "LSTM": cell == "lstm", "PRECISION": precision}
    return Launch(kernel, common | tiles | constants, {"num_warps": chosen.warps, "num_stages": chosen.stages})


def all_launches(cell: str, hidden: int, precision: str, architecture: int, direction: str) -> list[Launch]:
    """Every kernel the table selects for this layer in one direction (``forward`` or ``backward``), for each bucket of
    lanes, in its most demanding form.
    """
    found = []
    for lanes in table.buckets(cell, hidden, precision, architecture):
        layer = (cell, hidden, precision)
        chosen = table.configuration(*layer, architecture, lanes)
        recomputing = table.step_configuration(*layer, architecture, lanes)
        if direction == "forward":
            found.append(forward(chosen, *layer, has_bias=True, keep=True))
            found.append(forward(recomputing, *layer, has_bias=True, keep=True, recompute=True))
        else:
            found.append(backward(chosen, *layer, wants_stored=True, window=True))
    return [launch for index, launch in enumerate(found) if launch not in found[:index]]
