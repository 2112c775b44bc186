"""A backend: the cell's own step in a loop, differentiated by autograd."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recurrl.config import BackendConfig
from recurrl.config.options import option
from recurrl.recurrent.backends import Options
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.segments import Segments, expanded


@dataclass
class LoopConfig(BackendConfig):
    """Options of the loop."""

    project_first: bool = option("project the inputs of all steps at once", default=True)


class Loop:
    """Runs every cell on every device; autograd differentiates it."""

    controls_matmul_precision = False  # torch's settings apply

    def __init__(self, options: LoopConfig) -> None:
        self.project_first = options.project_first

    def supports(self, cell: Cell, options: Options, device: torch.device | None) -> str | None:
        """None if the cell and the options are supported, else an error message."""
        return None

    def sequence(
        self, cell: Cell, x_BTI: Tensor, segments: Segments, stored: States, weights: Weights, options: Options
    ) -> tuple[Tensor, States]:
        """The output and the states of every step."""
        x_BTX = cell.project(weights, x_BTI) if self.project_first else x_BTI
        states, outputs, history = tuple(state[:, 0] for state in stored), [], []
        for t, starts_B in enumerate(segments.starts_BT.unbind(1)):
            states = tuple(
                torch.where(expanded(starts_B, state), stored_state[:, t], state)
                for stored_state, state in zip(stored, states, strict=True)
            )
            x_BX = x_BTX[:, t] if self.project_first else cell.project(weights, x_BTX[:, t])
            output, states = cell.step(weights, x_BX, states)
            outputs.append(output)
            history.append(states)
        return torch.stack(outputs, 1), tuple(torch.stack(steps, 1) for steps in zip(*history, strict=True))
