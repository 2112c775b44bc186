"""Kernels with the compile-time constants of a configuration."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from recurrl.recurrent.backends.triton import kernels
from recurrl.recurrent.backends.triton.tiles import Configuration

Layer = tuple[str, int, str]
"""The cell, ``gru`` or ``lstm``, the hidden size, and the precision."""


class Launch(NamedTuple):
    """A kernel and its compile-time constants."""

    kernel: Any
    """The triton function."""
    constants: dict[str, Any]
    options: dict[str, int]
    """``num_warps`` and ``num_stages``."""

    def blocks(self, lanes: int) -> int:
        """Number of programs for this many lanes."""
        return -(-lanes // self.constants["BM"])

    def run(self, size: tuple[int, int], *arguments: Tensor | int) -> None:
        """Launches the programs for ``(lanes, hidden units)``."""
        lanes, units = size
        grid = (self.blocks(lanes), -(-units // self.constants.get("BH", units)))
        self.kernel[grid](*arguments, **self.constants, **self.options)


def forward(chosen: Configuration, layer: Layer, *, has_bias: bool, keep: bool) -> Launch:
    """The forward kernel."""
    kernel = kernels.resident_forward if chosen.resident else kernels.step_forward
    return _launch(kernel, chosen, layer, {"HAS_BIAS": has_bias, "KEEP": keep})


def backward(
    chosen: Configuration, layer: Layer, *, wants_stored: bool, after: bool = True, here: bool = True
) -> Launch:
    """The backward kernel. ``after`` and ``here`` select the two parts of the step kernel."""
    constants: dict[str, Any] = {"WANTS_STORED": wants_stored}
    if chosen.resident:
        return _launch(kernels.resident_backward, chosen, layer, constants)
    constants |= {"AFTER": after, "HERE": here}
    return _launch(kernels.step_backward, chosen, layer, constants)


def _launch(kernel: Any, chosen: Configuration, layer: Layer, constants: dict[str, Any]) -> Launch:
    cell, hidden, precision = layer
    tiles = {"HP": chosen.units} if chosen.resident else {"BH": chosen.units, "BK": chosen.depth}
    common = {"H": hidden, "BM": chosen.lanes, "LSTM": cell == "lstm", "PRECISION": precision}
    return Launch(kernel, common | tiles | constants, {"num_warps": chosen.warps, "num_stages": chosen.stages})
