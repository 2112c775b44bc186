"""torch's fused kernels (oneDNN, cuDNN) over segments laid side by side.

Rows without a reset go to the kernel unchanged. Otherwise the segments are laid out in blocks (see
:mod:`~recurrl.recurrent.backends.pad.layout`) with almost no padding and without ``PackedSequence``, for which cuDNN
has no fast kernel. States carry over from block to block.

On a CPU, where each kernel call costs as much as a hundred steps, an LSTM's segments are joined end to end and run in
one call. The kernel knows no resets and returns only the final memory cell, so three steps without input separate two
segments. Extra control inputs set their gates: the first step holds the memory cell c and outputs h = 0; the second
outputs c times 1e-13, from which c is read; the third multiplies both by zero, so that neither values nor gradients
cross from one segment to the next. A segment that starts from a nonzero state, or one that requires grad, begins its
own chain.

Shape legend: B rows, T steps, I input size, J columns of the input (I plus one per control), H hidden size, G gate
rows, N segments, C chains of segments, P steps of all rows, Q steps of all blocks, K segments followed by another in
their chain, X size of a state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.pad.layout import Layout, joined, separate
from recurrl.recurrent.cell import Cell, Weights
from recurrl.recurrent.gated import Fused, is_fused
from recurrl.recurrent.segments import Segments, in_transform

OWN_PRODUCTS = False

_CONTROLS = 3  # hold, read out and clear the state

# The kernel keeps about 62 bytes per step and hidden feature for its backward pass. Stay below 32 MiB: from there on
# glibc maps fresh memory on every call, and the page faults cost more than the matmuls.
_STEPS_AND_FEATURES_AT_ONCE = 3 << 17
# The readout is the tanh of the state times 1e-13. Above this value the state exceeds 1e4 and is read out inaccurately,
# or it is not finite and cannot be cleared.
_MAX_READOUT = 1e-9


def supports(cell: Cell, options: Options, device: torch.device | None) -> str | None:
    """Torch's kernels manage their own backward workspace and cannot recompute."""
    if not is_fused(cell):
        return f"backend=pad does not support cell={cell.name}: torch has no fused kernel for it. Choose backend=scan."
    if options.recompute != "none":
        return (
            f"recompute={options.recompute} is not possible with backend=pad, whose fused kernels manage their own "
            "backward workspace. Choose backend=scan, or recompute=none."
        )
    return None


def sequence(
    cell: Cell,
    x_BTI: Tensor,
    segments: Segments,
    stored_states_BTX: tuple[Tensor, ...],
    weights: Weights,
    options: Options,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Runs one layer with the fused kernel."""
    packing = segments.packing
    entering_NX = tuple(packing.at_starts(stored) for stored in stored_states_BTX)
    if not segments.any_reset:
        states_1BX = tuple(state.unsqueeze(0) for state in entering_NX)
        output_TBX, last_1BX = _run(cell, x_BTI.transpose(0, 1), states_1BX, weights, options)
        return output_TBX.transpose(0, 1), tuple(packing.at_ends(state[0]) for state in last_1BX)
    on_cpu = x_BTI.device.type == "cpu"
    steps_at_once = max(_STEPS_AND_FEATURES_AT_ONCE // entering_NX[-1].shape[1], 1) if on_cpu else None
    layer = (cell, x_BTI.flatten(0, 1), entering_NX, weights, options)
    if on_cpu and _may_join(cell, x_BTI, weights):
        layout = joined(packing, _must_be_first(entering_NX), steps_at_once)
    else:
        layout = separate(packing, steps_at_once)
    output_PX, further_NX, is_exact = _by_layout(*layer, layout)
    if not is_exact:
        output_PX, further_NX, _ = _by_layout(*layer, separate(packing, steps_at_once))
    # A padded segment ended before the kernel's last output; its other states were held.
    last_NX = (output_PX.index_select(0, packing.ends_N), *further_NX)
    return output_PX.unflatten(0, packing.rows_and_steps), tuple(packing.at_ends(state) for state in last_NX)


def _may_join(cell: Cell, x_BTI: Tensor, weights: Weights) -> bool:
    """True if the kernel can read out states as accurately as the caller expects."""
    exact = x_BTI.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return is_fused(cell) and cell.HOLD is not None and "weight_hr" not in weights and exact and not in_transform()


def _must_be_first(entering_NX: tuple[Tensor, ...]) -> bytes:
    """One byte per segment, nonzero if its initial state is nonzero or requires grad."""
    if torch.is_grad_enabled() and any(entering.requires_grad for entering in entering_NX):
        return bytes([1]) * len(entering_NX[0])
    return torch.cat(entering_NX, 1).any(1).numpy().tobytes()


def _by_layout(
    cell: Cell,
    x_PI: Tensor,
    entering_NX: tuple[Tensor, ...],
    weights: Weights,
    options: Options,
    layout: Layout,
) -> tuple[Tensor, list[Tensor], bool]:
    """Returns all outputs, the remaining states after each segment, and a flag that is False if some state was not
    finite or too large to read out and clear; the first two are then invalid.
    """
    holding = cell if is_fused(cell) and cell.HOLD is not None else None
    if holding is not None:
        controlled = torch.cat((weights["weight_ih"], _control_weights(holding, weights)), 1)
        weights = {**weights, "weight_ih": controlled}
    x_QJ = _to_blocks(x_PI, layout, 0 if holding is None else _CONTROLS)
    states_CX = tuple(entering.index_select(0, layout.heads_C) for entering in entering_NX)
    x_of_pieces = iter(_cut(x_QJ, [steps * size for steps, sizes in layout.blocks for size in sizes]))
    outputs: list[Tensor] = []
    ended: list[tuple[Tensor, ...]] = []
    continuing = [sum(sizes) for _, sizes in layout.blocks[1:]] + [0]
    for (steps, sizes), rest in zip(layout.blocks, continuing, strict=True):
        last_of = []
        # The iterator comes last so that zip does not consume a piece beyond the block.
        for *entering, x in zip(*(_cut(state[: sum(sizes)], sizes) for state in states_CX), x_of_pieces, strict=False):
            states_1CX = tuple(state.unsqueeze(0) for state in entering)
            output_TCX, last_1CX = _run(cell, x.unflatten(0, (steps, -1)), states_1CX, weights, options)
            outputs.append(output_TCX.flatten(0, 1))
            last_of.append([state[0] for state in last_1CX])
        states_CX = tuple(_concatenated(states) for states in zip(*last_of, strict=True))
        ended.append(tuple(state[rest:] for state in states_CX[1:]))
    output_PX, readout_KX = _from_blocks(_concatenated(outputs), layout)
    further_NX = [_concatenated(states[::-1]) for states in zip(*ended, strict=True)]
    is_exact = True
    if holding is not None and len(readout_KX) > 0:
        is_exact = float(torch.linalg.vector_norm(readout_KX.detach(), math.inf)) < _MAX_READOUT
        further_NX = [torch.cat((readout_KX / holding.READ_OUT_SCALE, *further_NX))]
    return output_PX, [state.index_select(0, layout.order_N) for state in further_NX], is_exact


def _cut(whole: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """The parts of the given sizes, without a copy of their gradients if there is but one."""
    return (whole,) if len(sizes) == 1 else whole.split_with_sizes(sizes)


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    """Concatenates the parts; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def _run(
    cell: Cell, x_TBI: Tensor, states_1BX: tuple[Tensor, ...], weights: Weights, options: Options
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs and last states of rows without a reset, by the fused kernel, or by a loop if it is disabled."""
    if options.fused and is_fused(cell):
        return cell.fused(x_TBI, states_1BX, list(weights.values()), "bias_ih" in weights, torch.is_grad_enabled())
    outputs = []
    states_BX = tuple(state[0] for state in states_1BX)
    for x_gates_BG in cell.project(weights, x_TBI):
        output_BX, states_BX = cell.step(weights, x_gates_BG, states_BX)
        outputs.append(output_BX)
    return torch.stack(outputs), tuple(state.unsqueeze(0) for state in states_BX)


def _control_weights(cell: Fused, weights: Weights) -> Tensor:
    """Weights ``[G, _CONTROLS]`` of the control inputs that hold, read out and clear the state.

    The readout follows a step whose output was zero. With the biases subtracted nothing else is left in the gate
    projections, and the bias gradients from that step cancel those through these weights.
    """
    w_ih = weights["weight_ih"]
    columns_GM = _control_columns((cell.HOLD, cell.READ_OUT, cell.CLEAR), len(w_ih), w_ih.dtype, w_ih.device)
    if "bias_ih" not in weights:
        return columns_GM
    held_G, readout_G, cleared_G = columns_GM.unbind(1)
    return torch.stack((held_G, readout_G - (weights["bias_ih"] + weights["bias_hh"]), cleared_G), 1)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _control_columns(
    of_gates: tuple[tuple[float, ...], ...], gate_rows: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    columns = torch.tensor(of_gates, dtype=dtype, device=device).t()
    return columns.repeat_interleave(gate_rows // len(columns), 0)


def _to_blocks(x_PI: Tensor, layout: Layout, controls: int) -> Tensor:
    """The block inputs ``[Q, J]``; steps without input are zero except for their control."""
    if in_transform():
        return _with_controls(x_PI, controls).index_select(0, layout.source_Q)
    return _ToBlocks.apply(x_PI, layout, controls)  # type: ignore[no-untyped-call]


def _with_controls(x_PI: Tensor, controls: int) -> Tensor:
    """Adds a row for each kind of step without input, and a column for its control."""
    x = functional.pad(x_PI, (0, controls, 0, _CONTROLS))
    x[-_CONTROLS:, x_PI.shape[1] :] += torch.eye(_CONTROLS, controls, dtype=x.dtype, device=x.device)
    return x


class _ToBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_PI: Tensor, layout: Layout, controls: int) -> Tensor:
        ctx.layout, ctx.inputs = layout, x_PI.shape[1]
        return _with_controls(x_PI, controls).index_select(0, layout.source_Q)

    @staticmethod
    def backward(ctx: Any, grad_QJ: Tensor) -> tuple[Tensor, None, None]:
        return grad_QJ[:, : ctx.inputs].index_select(0, ctx.layout.place_P), None, None


def _from_blocks(values_QX: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Gathers the row steps ``[P, X]`` and the readouts ``[K, X]`` from the block steps."""
    if in_transform():
        return values_QX.index_select(0, layout.place_P), values_QX.index_select(0, layout.readout_K)
    return _FromBlocks.apply(values_QX, layout)  # type: ignore[no-untyped-call]


class _FromBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values_QX: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        ctx.layout, ctx.shape = layout, values_QX.shape
        ctx.set_materialize_grads(False)
        return values_QX.index_select(0, layout.place_P), values_QX.index_select(0, layout.readout_K)

    @staticmethod
    def backward(ctx: Any, grad_PX: Tensor | None, grad_KX: Tensor | None) -> tuple[Tensor | None, None]:
        given = [grad for grad in (grad_PX, grad_KX) if grad is not None]
        if not given:
            return None, None
        # Block steps that are neither a row step nor a readout get no gradient.
        grad_QX = given[0].new_zeros(ctx.shape)
        if grad_PX is not None:
            grad_QX.index_copy_(0, ctx.layout.place_P, grad_PX)
        if grad_KX is not None:
            grad_QX.index_copy_(0, ctx.layout.readout_K, grad_KX)
        return grad_QX, None
