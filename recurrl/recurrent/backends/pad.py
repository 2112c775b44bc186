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

# What one more block costs, a call of the kernel, in steps of one segment. Measured with oneDNN: 50 to 200 are about as
# fast, and the less, the less padding takes memory.
_BLOCK = 50


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
    states_1NX = tuple(packing.at_starts(stored).unsqueeze(0) for stored in stored_states_BTX)
    if not segments.any_reset:
        output_TBX, last_1BX = _run(cell, x_BTI.transpose(0, 1), states_1NX, weights, options)
        return output_TBX.transpose(0, 1), tuple(packing.at_ends(state[0]) for state in last_1BX)
    blocks, positions_Q, padded_Q, inverse_P = _layout(packing)
    x_Q = permuted(x_BTI.flatten(0, 1), positions_Q, inverse_P)
    hold = cell.HOLD if is_fused(cell) else None
    if hold is not None:
        # One more input, set where a segment is padded, keeps the states that the kernel returns as they are.
        x_Q = torch.cat((x_Q, padded_Q.to(x_Q.dtype).unsqueeze(1)), 1)
        column_G1 = _column(hold, len(weights.w_ih), x_Q.dtype, x_Q.device)
        weights = weights._replace(w_ih=torch.cat((weights.w_ih, column_G1), 1))
    outputs: list[Tensor] = []
    ended: list[list[Tensor]] = []
    going_on = [size for _, _, size in blocks[1:]] + [0]
    for (_, steps, size), x, rest in zip(
        blocks, x_Q.split_with_sizes([steps * size for _, steps, size in blocks]), going_on, strict=True
    ):
        output, last = _run(cell, x.unflatten(0, (steps, size)), states_1NX, weights, options)
        outputs.append(output.flatten(0, 1))
        parts = [state.split_with_sizes([rest, size - rest], 1) for state in last]
        states_1NX = tuple(on for on, _ in parts)
        ended.append([done for _, done in parts[1:]])
    output_PX = _collected(torch.cat(outputs), positions_Q, padded_Q, inverse_P)
    further_1NX = (torch.cat(states, 1) for states in zip(*reversed(ended), strict=True))
    # A padded segment's last output is not what the kernel returned last; its further states were held.
    last_NX = (output_PX.index_select(0, packing.ends_N), *(state[0] for state in further_1NX))
    return output_PX.unflatten(0, packing.rows_and_steps), tuple(packing.at_ends(state) for state in last_NX)


def _run(
    cell: Cell, x_TBI: Tensor, states_1BX: tuple[Tensor, ...], weights: LayerWeights, options: Options
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs and last states of rows without a reset, by the fused kernel or, if it is not wanted, by a loop."""
    if options.fused and is_fused(cell):
        has_biases = weights.b_ih is not None
        return cell.fused(x_TBI, states_1BX, weights.present(), has_biases, torch.is_grad_enabled())
    outputs = []
    states_BX = tuple(state[0] for state in states_1BX)
    for x_gates_BG in functional.linear(x_TBI, weights.w_ih, weights.b_ih):
        states_BX = step(cell, weights, x_gates_BG, states_BX)
        outputs.append(states_BX[0])
    return torch.stack(outputs), tuple(state.unsqueeze(0) for state in states_BX)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _column(hold: tuple[float, ...], gate_rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``[G, 1]``: what each gate row gets from the input that is set at padding."""
    return torch.tensor(hold, dtype=dtype, device=device).repeat_interleave(gate_rows // len(hold)).unsqueeze(1)


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


# As many as the packings that are kept, and like these no tensors of inference mode.
@lru_cache(maxsize=64)
@torch.inference_mode(False)
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
        grad_QX = grad_PX.index_select(0, positions_Q)
        return grad_QX.masked_fill_(padded_Q.unsqueeze(1), 0.0), None, None, None
