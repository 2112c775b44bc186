"""torch's fused kernels (oneDNN, cuDNN): rows are split at resets, padded to the longest segment, and run in one call.

The kernel returns an LSTM's memory cell only after the last step, which may be padding. So an LSTM has one more input,
which is 1 in padding and sets the gates so that the cell is kept.

Shape legend: B rows, T steps, I input size, N segments, S steps of the longest, P steps of all rows, X size of a state,
G gate rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.backends import Options
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.segments import Segments

controls_matmul_precision = False
# i = o = σ(−∞) = 0 and f = σ(∞) = 1, exact in every floating format: c' = c and h' = 0.
_HOLD = (-1e4, 1e4, 0.0, -1e4)


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Supports GRU and LSTM."""
    if cell.TORCH is None:
        return f"backend=pad does not support the cell {cell.name}: torch has no fused kernel. Choose backend=scan."
    return None


def sequence(
    cell: Cell, x_BTI: Tensor, segments: Segments, stored_states: States, weights: Weights, options: Options
) -> tuple[Tensor, States]:
    """Runs one layer with the fused kernel."""
    packing, x_PI = segments.packing, segments.packing.pack(x_BTI)
    count, steps = packing.batch_sizes[0], len(packing.batch_sizes)
    running_SN = torch.arange(count) < torch.tensor(packing.batch_sizes)[:, None]
    place_P = running_SN.flatten().nonzero()[:, 0].to(x_PI.device)
    padding_I = x_PI.new_zeros(x_PI.shape[1])
    if cell.TORCH is nn.LSTM:
        w_ih = weights["weight_ih"]
        hold_G1 = w_ih.new_tensor(_HOLD).repeat_interleave(len(w_ih) // len(_HOLD))[:, None]
        weights = {**weights, "weight_ih": torch.cat((w_ih, hold_G1), 1)}
        x_PI, padding_I = functional.pad(x_PI, (0, 1)), functional.pad(padding_I, (0, 1), value=1.0)
    x_SNI = padding_I.repeat(steps * count, 1).index_copy(0, place_P, x_PI).unflatten(0, (steps, count))
    kernel: Any = torch.gru if cell.TORCH is nn.GRU else torch.lstm
    initial = [packing.at_starts(stored)[None] for stored in stored_states]
    settings = ("bias_ih" in weights, 1, 0.0, torch.is_grad_enabled(), False, False)
    output_SNX, _, *last_1NX = kernel(
        x_SNI, initial[0] if cell.TORCH is nn.GRU else initial, [*weights.values()], *settings
    )
    output_BTX = packing.unpack(output_SNX.flatten(0, 1).index_select(0, place_P))
    return output_BTX, (output_BTX, *[packing.at_ends(state[0]) for state in last_1NX])
