"""torch's own fused kernels (oneDNN, cuDNN) over blocks of segments.

Where no row holds a reset the rows go to the kernel as they are. Where some do, the segments are sorted by length and
cut into blocks of steps, so that within a block about as many segments run from its first step to its last; the few
that end earlier are padded. The states flow from block to block. Serial depth is the longest segment, padding is next
to nothing, and nothing is a ``PackedSequence``, for which cuDNN has no fast kernel.

Shape legend: B rows, T steps, I input size, H hidden size, G gate rows, N segments, P steps of all rows, Q steps of all
blocks, X size of a state.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent import precision
from recurrl.recurrent.backends import LayerWeights, Options, step
from recurrl.recurrent.cells import Cell, is_fused
from recurrl.recurrent.segments import Packing, Segments, in_transform, permuted

OWN_PRODUCTS = False

# What one more block costs, a call of the kernel, in steps of one segment. Measured with oneDNN: 100 to 200 are about
# as fast, and 100 takes the least memory.
_BLOCK = 100


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Torch's kernels keep a backward workspace of their own, so they can recompute nothing."""
    if options.fused and not is_fused(cell):
        return "backend=pad is not possible for this cell, which torch has no fused kernel for. Choose backend=scan."
    if options.recompute != "none":
        return (
            f"recompute={options.recompute} is not possible with backend=pad, whose fused kernels manage their own "
            "backward workspace. Choose backend=scan, or recompute=none."
        )
    return precision.refusal_by_torch("pad", options.precision, options.compute_dtype, device)


def sequence(
    cell: Cell,
    x_BTI: Tensor,
    segments: Segments,
    stored_states_BTX: tuple[Tensor, ...],
    weights: LayerWeights,
    options: Options,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer by the fused kernel."""
    packing = segments.packing
    entering_NX = tuple(packing.at_starts(stored) for stored in stored_states_BTX)
    if not segments.any_reset:
        output_TBX, last_BX = _run(cell, x_BTI.transpose(0, 1), entering_NX, weights, options)
        return output_TBX.transpose(0, 1), tuple(packing.at_ends(state) for state in last_BX)
    blocks, positions_Q, padded_Q, inverse_P = _layout(packing)
    x_Q = permuted(x_BTI.flatten(0, 1), positions_Q, inverse_P)
    hold = cell.HOLD if is_fused(cell) else None
    if hold is not None:
        # One more input, set where a segment is padded, keeps the states that the kernel returns as they are.
        x_Q = torch.cat((x_Q, padded_Q.to(x_Q.dtype).unsqueeze(1)), 1)
        column_G = torch.tensor(hold, dtype=x_Q.dtype, device=x_Q.device).repeat_interleave(
            len(weights.w_ih) // len(hold)
        )
        weights = weights._replace(w_ih=torch.cat((weights.w_ih, column_G.unsqueeze(1)), 1))
    outputs: list[Tensor] = []
    ended: list[tuple[Tensor, ...]] = []
    states = entering_NX
    going_on = [size for _, _, size in blocks[1:]] + [0]
    for (_, steps, size), x, rest in zip(
        blocks, x_Q.split_with_sizes([steps * size for _, steps, size in blocks]), going_on, strict=True
    ):
        output, last = _run(cell, x.unflatten(0, (steps, size)), states, weights, options)
        outputs.append(output.flatten(0, 1))
        ended.append(tuple(state[rest:] for state in last[1:]))
        states = tuple(state[:rest].contiguous() for state in last)
    output_PX = _collected(torch.cat(outputs), positions_Q, padded_Q, inverse_P)
    # A padded segment's last output is not what the kernel returned last; its further states were held.
    last_NX = (output_PX.index_select(0, packing.ends_N), *(torch.cat(s) for s in zip(*reversed(ended), strict=True)))
    return output_PX.unflatten(0, packing.rows_and_steps), tuple(packing.at_ends(state) for state in last_NX)


def _run(
    cell: Cell, x_TBI: Tensor, states_BX: tuple[Tensor, ...], weights: LayerWeights, options: Options
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs and last states of rows without a reset, by the fused kernel or, if it is not wanted, by a loop."""
    if options.fused and is_fused(cell):
        has_biases = weights.b_ih is not None
        return cell.fused(x_TBI, states_BX, weights.present(), has_biases, torch.is_grad_enabled())
    outputs = []
    for x_gates_BG in functional.linear(x_TBI, weights.w_ih, weights.b_ih):
        states_BX = step(cell, weights, x_gates_BG, states_BX)
        outputs.append(states_BX[0])
    return torch.stack(outputs), states_BX


def _blocks(batch_sizes: list[int], cost_of_one: int) -> list[tuple[int, int, int]]:
    """``(first step, steps, segments)`` of each block, so that padding and number of blocks cost least together.

    By dynamic programming over the steps at which segments end: the best blocks up to one of them are the best up to
    an earlier one, and one more.
    """
    sizes = np.asarray(batch_sizes)
    edges = np.concatenate(([0], np.flatnonzero(np.diff(sizes)) + 1, [len(sizes)]))
    sizes = sizes[edges[:-1]]
    cost = sizes[:, None] * (edges[None, :] - edges[:-1, None]) + cost_of_one
    best = np.zeros(len(edges), dtype=np.int64)
    begin = np.zeros(len(edges), dtype=np.int64)
    for end in range(1, len(edges)):
        totals = best[:end] + cost[:end, end]
        begin[end] = totals.argmin()
        best[end] = totals[begin[end]]
    blocks = []
    end = len(edges) - 1
    while end > 0:
        first = begin[end]
        blocks.append((int(edges[first]), int(edges[end] - edges[first]), int(sizes[first])))
        end = first
    return blocks[::-1]


# As many as the packings that are kept.
@lru_cache(maxsize=64)
def _layout(packing: Packing) -> tuple[list[tuple[int, int, int]], Tensor, Tensor, Tensor]:
    """The blocks; where each of their steps comes from, whether it is padding, and where each step of the rows is."""
    blocks = _blocks(packing.batch_sizes, _BLOCK)
    positions, beyond = [], []
    for first, steps, size in blocks:
        offset_T1 = torch.arange(first, first + steps, device=packing.starts_N.device)[:, None]
        wanted = packing.starts_N[:size] + offset_T1
        last = packing.ends_N[:size]
        positions.append(torch.minimum(wanted, last).flatten())
        beyond.append((wanted > last).flatten())
    positions_Q, padded_Q = torch.cat(positions), torch.cat(beyond)
    inverse_P = torch.empty(packing.rows_and_steps.numel(), dtype=torch.long, device=positions_Q.device)
    real = (~padded_Q).nonzero().squeeze(1)
    inverse_P[positions_Q[real]] = real
    return blocks, positions_Q, padded_Q, inverse_P


def _collected(values_QX: Tensor, positions_Q: Tensor, padded_Q: Tensor, inverse_P: Tensor) -> Tensor:
    """The steps of the rows ``[P, X]`` from those of the blocks. Padding has no gradient."""
    if in_transform():
        return values_QX.index_select(0, inverse_P)
    return _Collected.apply(values_QX, positions_Q, padded_Q, inverse_P)  # type: ignore[no-untyped-call]


class _Collected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values_QX: Tensor, positions_Q: Tensor, padded_Q: Tensor, inverse_P: Tensor) -> Tensor:
        ctx.save_for_backward(positions_Q, padded_Q)
        return values_QX.index_select(0, inverse_P)

    @staticmethod
    def backward(ctx: Any, grad_PX: Tensor) -> tuple[Tensor, None, None, None]:
        positions_Q, padded_Q = ctx.saved_tensors
        # Out of place, because it may be differentiated once more.
        grad_QX = grad_PX.index_select(0, positions_Q).masked_fill(padded_Q.unsqueeze(1), 0.0)
        return grad_QX, None, None, None
