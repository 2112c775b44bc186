"""Values that fall linearly with the frames seen."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def annealed(start: float, final_fraction: float, progress: float) -> float:
    """``start`` at progress 0, ``start · final_fraction`` at progress 1, linear between."""
    return start * (1 - (1 - final_fraction) * progress)


def anneal(module: nn.Module, schedules: Mapping[str, tuple[float, float]], progress: float) -> None:
    """Sets buffers of ``module`` to :func:`annealed` values; each has its start and final fraction."""
    for name, (start, final_fraction) in schedules.items():
        module.get_buffer(name).fill_(annealed(start, final_fraction, progress))
