"""What ``backend=auto`` chooses: the first of its candidates that can run what is asked.

What was chosen belongs to a run's checkpoints: results differ in their last bits between backends, and another machine
may have no C compiler.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from recurrl.recurrent.backends import Options, candidates, native, refusal
from recurrl.recurrent.cell import Cell
from recurrl.recurrent.segments import in_transform

_log = logging.getLogger(__name__)


class Chooser:
    """Remembers one module's choice. A copy of the module shares it.

    Attributes:
        chosen: the backend; None before the first sequence.
    """

    def __init__(self) -> None:
        self.chosen: str | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Chooser:
        return self

    def choose(self, cell: Cell, x_BTI: Tensor, options: Options) -> str:
        """The backend to run this batch by.

        Raises:
            ValueError: no backend can do what is asked on this device.
        """
        if torch.compiler.is_compiling():
            # The only two that compile without graph breaks.
            return "scan" if _refusal("native", cell, x_BTI, options) else "native"
        if in_transform():
            return "reference"
        if self.chosen is not None:
            reason = _refusal(self.chosen, cell, x_BTI, options)
            if reason is None:
                return self.chosen
            _log.warning("backend auto was %s, which is not possible now: %s", self.chosen, reason)
        self.chosen = _choose(cell, x_BTI, options)
        return self.chosen


class Choices:
    """What the modules of a policy chose, as a component of a checkpoint.

    Args:
        choosers: of the modules, in their order.
    """

    def __init__(self, choosers: Sequence[Chooser]) -> None:
        self._choosers = choosers

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"modules": [chooser.chosen for chooser in self._choosers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keeps the choices that were made."""
        for chooser, chosen in zip(self._choosers, state["modules"], strict=True):
            chooser.chosen = chosen


def _choose(cell: Cell, x_BTI: Tensor, options: Options) -> str:
    reasons: list[str] = []
    for name in candidates(x_BTI.device):
        reason = _refusal(name, cell, x_BTI, options)
        if reason is None:
            without = [
                f", without native, which is faster: {each}" for each in reasons if each == native.library.problem()
            ]
            _say(f"backend auto is {name}{''.join(without)}")
            return name
        reasons.append(reason)
    raise ValueError(" ".join(reasons))


def _refusal(name: str, cell: Cell, x_BTI: Tensor, options: Options) -> str | None:
    if name == "native" and x_BTI.dtype not in native.DTYPES:
        return f"backend=native does not compute in {x_BTI.dtype}."
    return refusal(name, cell, options, x_BTI.device)


@cache
def _say(line: str) -> None:
    _log.info(line)
