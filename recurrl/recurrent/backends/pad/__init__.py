"""torch's own fused kernels (oneDNN, cuDNN) over segments laid side by side.

Where no row holds a reset the rows go to the kernel as they are. Where some do, the segments are laid out in blocks
(see :mod:`~recurrl.recurrent.backends.pad.layout`), so that padding is next to nothing, and nothing is a
``PackedSequence``, for which cuDNN has no fast kernel. The states flow from block to block.

On a CPU, where each call of the kernel costs as much as a hundred steps, an LSTM's segments are joined end to end, and
one call runs them all. The kernel knows no resets, and gives no memory cell but the last. So between two segments lie
three steps without input, by whose gates an additional input decides: the first keeps the memory cell c and puts out
h = 0; the second puts out c times 1e-13, from where it is read; the third multiplies both by zero, so that nothing at
all of a segment reaches the next, and no gradient comes back. A segment that a state enters which is not zero, or which
has a gradient, begins a chain of its own.

Shape legend: B rows, T steps, I input size, J columns of the input (I, and one for each mark), H hidden size, G gate
rows, N segments, C chains of segments, P steps of all rows, Q steps of all blocks, K segments that another one follows
in its chain, X size of a state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent import precision
from recurrl.recurrent.backends import LayerWeights, Options, step
from recurrl.recurrent.backends.pad.layout import Layout, joined, separate
from recurrl.recurrent.cells import Cell, Fused, is_fused
from recurrl.recurrent.segments import Segments, in_transform

OWN_PRODUCTS = False

_MARKS = 3  # where the state is held, where it is shown, and where it is cleared

# What the kernel keeps for its backward pass, about 62 bytes a step and hidden feature, stays below the 32 MiB from
# which on glibc takes memory from the system anew in each call. The faults cost more than the products.
_STEPS_AND_FEATURES_AT_ONCE = 3 << 17
# What is shown is the hyperbolic tangent of the state times 1e-13. If it is more than this, the state is beyond 1e4 and
# shown less exactly, or it is not finite and cannot be cleared.
_MOST_SHOWN = 1e-9


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
    # A padded segment's last output is not what the kernel returned last; its further states were held.
    last_NX = (output_PX.index_select(0, packing.ends_N), *further_NX)
    return output_PX.unflatten(0, packing.rows_and_steps), tuple(packing.at_ends(state) for state in last_NX)


def _may_join(cell: Cell, x_BTI: Tensor, weights: LayerWeights) -> bool:
    """Whether the kernel can show states to the digits that the caller expects."""
    exact = x_BTI.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return is_fused(cell) and cell.HOLD is not None and weights.w_hr is None and exact and not in_transform()


def _must_be_first(entering_NX: tuple[Tensor, ...]) -> bytes:
    """A byte for each segment: whether the state that enters it is more than zero."""
    if torch.is_grad_enabled() and any(entering.requires_grad for entering in entering_NX):
        return bytes([1]) * len(entering_NX[0])
    return torch.cat(entering_NX, 1).any(1).numpy().tobytes()


def _by_layout(
    cell: Cell,
    x_PI: Tensor,
    entering_NX: tuple[Tensor, ...],
    weights: LayerWeights,
    options: Options,
    layout: Layout,
) -> tuple[Tensor, list[Tensor], bool]:
    """The outputs of all steps; the further states after each segment's last one; and whether all of these were
    finite and small enough to be shown and cleared: without it the other two are useless.
    """
    holding = cell if is_fused(cell) and cell.HOLD is not None else None
    if holding is not None:
        weights = weights._replace(w_ih=torch.cat((weights.w_ih, _marked(holding, weights)), 1))
    x_QJ = _laid_out(x_PI, layout, 0 if holding is None else _MARKS)
    states_CX = tuple(entering.index_select(0, layout.heads_C) for entering in entering_NX)
    x_of_pieces = iter(_cut(x_QJ, [steps * size for steps, sizes in layout.blocks for size in sizes]))
    outputs: list[Tensor] = []
    ended: list[tuple[Tensor, ...]] = []
    going_on = [sum(sizes) for _, sizes in layout.blocks[1:]] + [0]
    for (steps, sizes), rest in zip(layout.blocks, going_on, strict=True):
        last_of = []
        # zip asks the last one last: no piece is lost at the end of a block.
        for *entering, x in zip(*(_cut(state[: sum(sizes)], sizes) for state in states_CX), x_of_pieces, strict=False):
            states_1CX = tuple(state.unsqueeze(0) for state in entering)
            output_TCX, last_1CX = _run(cell, x.unflatten(0, (steps, -1)), states_1CX, weights, options)
            outputs.append(output_TCX.flatten(0, 1))
            last_of.append([state[0] for state in last_1CX])
        states_CX = tuple(_together(states) for states in zip(*last_of, strict=True))
        ended.append(tuple(state[rest:] for state in states_CX[1:]))
    output_PX, shown_KX = _collected(_together(outputs), layout)
    further_NX = [_together(states[::-1]) for states in zip(*ended, strict=True)]
    is_exact = True
    if holding is not None and len(shown_KX) > 0:
        is_exact = float(torch.linalg.vector_norm(shown_KX.detach(), math.inf)) < _MOST_SHOWN
        further_NX = [torch.cat((shown_KX / holding.SHOWN, *further_NX))]
    return output_PX, [state.index_select(0, layout.order_N) for state in further_NX], is_exact


def _cut(whole: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """The parts of the given sizes, without a copy of their gradients if there is but one."""
    return (whole,) if len(sizes) == 1 else whole.split_with_sizes(sizes)


def _together(parts: Sequence[Tensor]) -> Tensor:
    """The parts one after another, without a copy if there is but one."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


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


def _marked(cell: Fused, weights: LayerWeights) -> Tensor:
    """``[G, _MARKS]``: what each gate row gets from the input that is set where the state is held, shown, or cleared.

    A state is shown after a step that held it, whose output was zero. Without the biases nothing else is left of the
    gates' projections, and the biases' gradients from there are those of the inputs, and cancel out.
    """
    columns_GM = _columns(
        (cell.HOLD, cell.SHOW, cell.CLEAR), len(weights.w_ih), weights.w_ih.dtype, weights.w_ih.device
    )
    if weights.b_ih is None or weights.b_hh is None:
        return columns_GM
    held_G, shown_G, cleared_G = columns_GM.unbind(1)
    return torch.stack((held_G, shown_G - (weights.b_ih + weights.b_hh), cleared_G), 1)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _columns(
    of_gates: tuple[tuple[float, ...], ...], gate_rows: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    columns = torch.tensor(of_gates, dtype=dtype, device=device).t()
    return columns.repeat_interleave(gate_rows // len(columns), 0)


def _laid_out(x_PI: Tensor, layout: Layout, marks: int) -> Tensor:
    """The inputs ``[Q, J]`` of all steps of the blocks, those without one being zero but for their mark."""
    if in_transform():
        return _with_marks(x_PI, marks).index_select(0, layout.source_Q)
    return _LaidOut.apply(x_PI, layout, marks)  # type: ignore[no-untyped-call]


def _with_marks(x_PI: Tensor, marks: int) -> Tensor:
    """A row more for each kind of step that has no input, and a column for its mark."""
    x = functional.pad(x_PI, (0, marks, 0, _MARKS))
    x[-_MARKS:, x_PI.shape[1] :] += torch.eye(_MARKS, marks, dtype=x.dtype, device=x.device)
    return x


class _LaidOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_PI: Tensor, layout: Layout, marks: int) -> Tensor:
        ctx.layout, ctx.inputs = layout, x_PI.shape[1]
        return _with_marks(x_PI, marks).index_select(0, layout.source_Q)

    @staticmethod
    def backward(ctx: Any, grad_QJ: Tensor) -> tuple[Tensor, None, None]:
        return grad_QJ[:, : ctx.inputs].index_select(0, ctx.layout.place_P), None, None


def _collected(values_QX: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The steps of the rows ``[P, X]`` and what is shown ``[K, X]``, from the steps of the blocks."""
    if in_transform():
        return values_QX.index_select(0, layout.place_P), values_QX.index_select(0, layout.shown_K)
    return _Collected.apply(values_QX, layout)  # type: ignore[no-untyped-call]


class _Collected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values_QX: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        ctx.layout, ctx.shape = layout, values_QX.shape
        ctx.set_materialize_grads(False)
        return values_QX.index_select(0, layout.place_P), values_QX.index_select(0, layout.shown_K)

    @staticmethod
    def backward(ctx: Any, grad_PX: Tensor | None, grad_KX: Tensor | None) -> tuple[Tensor | None, None]:
        given = [grad for grad in (grad_PX, grad_KX) if grad is not None]
        if not given:
            return None, None
        # The output of a step that has no place in the rows is nobody's.
        grad_QX = given[0].new_zeros(ctx.shape)
        if grad_PX is not None:
            grad_QX.index_copy_(0, ctx.layout.place_P, grad_PX)
        if grad_KX is not None:
            grad_QX.index_copy_(0, ctx.layout.shown_K, grad_KX)
        return grad_QX, None
