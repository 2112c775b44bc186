"""The rule of ``backend=auto``: the first of its candidates that supports the layer, its options and its input."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

from recurrl.recurrent.backends import Options, candidates, native, unsupported_reason
from recurrl.recurrent.cell import Cell
from recurrl.recurrent.segments import in_transform

_log = logging.getLogger(__name__)


def choose(cell: Cell, x_BTI: Tensor, options: Options) -> str:
    """The name of the backend for this input. The first choice of each kind in a process is logged.

    Raises:
        ValueError: no backend supports the options on this device.
    """
    compiling = torch.compiler.is_compiling()
    if not compiling and in_transform():
        return "reference"
    reasons: list[str] = []
    # Only these two compile without graph breaks.
    for name in ("native", "scan") if compiling else candidates(x_BTI.device):
        reason = unsupported_reason(name, cell, options, x_BTI.device)
        if name == "native" and x_BTI.dtype not in native.DTYPES:
            reason = f"backend=native does not compute in {x_BTI.dtype}."
        if reason is None:
            if not compiling:
                _log_once(name, next((each for each in reasons if each == native.library.problem()), None))
            return name
        reasons.append(reason)
    raise ValueError(" ".join(reasons))


@cache
def _log_once(name: str, no_compiler: str | None) -> None:
    _log.info("backend auto is %s%s", name, f", without native, which is faster: {no_compiler}" if no_compiler else "")
