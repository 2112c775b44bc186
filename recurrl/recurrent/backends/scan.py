"""A scan over time: hand-written backward in eager mode, hoptorch's scan under ``torch.compile``.

In eager mode the segments are packed (longest first, see :class:`~recurrl.recurrent.segments.Packing`), so that serial
depth is the longest segment, nothing is padded, and the stored states are read at segment starts alone. One GEMM
projects all inputs; the loop holds the recurrent product and the cell's maths; after the backward loop one GEMM gives
the weight gradient.

Under ``torch.compile`` nothing may depend on the data's values: the scan walks all T steps and selects the stored state
where a segment starts.

Shape legend: B rows, T steps, I input size, H hidden size, G gate rows, N segments, P packed steps (B·T).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from recurrl.recurrent.backends import LayerWeights, Options
from recurrl.recurrent.cells import Cell
from recurrl.recurrent.segments import Segments


def supports(cell: Cell, options: Options, device: torch.device) -> str | None:
    """The scan runs every cell on every device, with and without recomputation."""
    return None


def sequence(
    cell: Cell,
    x_BTI: Tensor,
    segments: Segments,
    stored_states_BTH: tuple[Tensor, ...],
    weights: LayerWeights,
    options: Options,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer by a scan over its steps."""
    if torch.compiler.is_compiling():
        return _traced(cell, x_BTI, segments, stored_states_BTH, weights)
    packing = segments.packing
    entering_NH = tuple(packing.at_starts(stored_BTH) for stored_BTH in stored_states_BTH)
    x_PI = packing.pack(x_BTI)
    batch_sizes = packing.batch_sizes.tolist()
    run = _packed_in_chunks if options.recompute == "full" else _packed
    states_P = run(cell, x_PI, batch_sizes, entering_NH, weights)
    all_states_BTH = tuple(packing.unpack(state_PH) for state_PH in states_P)
    return all_states_BTH[0], all_states_BTH


def _packed(
    cell: Cell, x_PI: Tensor, batch_sizes: list[int], entering_NH: tuple[Tensor, ...], weights: LayerWeights
) -> tuple[Tensor, ...]:
    x_gates_PG = functional.linear(x_PI, weights.w_ih, weights.b_ih)
    states: tuple[Tensor, ...] = _PackedScan.apply(  # type: ignore[no-untyped-call]
        cell, batch_sizes, x_gates_PG, weights.w_hh, weights.b_hh, *entering_NH
    )
    return states


def _packed_in_chunks(
    cell: Cell, x_PI: Tensor, batch_sizes: list[int], entering_NH: tuple[Tensor, ...], weights: LayerWeights
) -> tuple[Tensor, ...]:
    """As ``_packed``, keeping the states at about √S steps only; the backward pass runs each chunk again."""
    steps = math.isqrt(max(len(batch_sizes) - 1, 0)) + 1
    chunks: list[tuple[Tensor, ...]] = []
    begin = 0
    for first in range(0, len(batch_sizes), steps):
        sizes = batch_sizes[first : first + steps]
        end = begin + sum(sizes)
        states = checkpoint(
            _packed,
            cell,
            x_PI[begin:end],
            sizes,
            tuple(s[: sizes[0]] for s in entering_NH),
            weights,
            use_reentrant=False,
        )
        chunks.append(states)
        entering_NH = tuple(state_PH[-sizes[-1] :] for state_PH in states)
        begin = end
    return tuple(torch.cat(pieces) for pieces in zip(*chunks, strict=True))


class _PackedScan(torch.autograd.Function):
    """Every state after every packed step, from the input projections and the states entering the segments."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        batch_sizes: list[int],
        x_gates_PG: Tensor,
        w_hh: Tensor,
        b_hh: Tensor | None,
        *entering_NH: Tensor,
    ) -> tuple[Tensor, ...]:
        w_hh_t = w_hh.t()
        states_PH = tuple(state.new_empty(x_gates_PG.shape[0], state.shape[1]) for state in entering_NH)
        gates_PG = torch.empty_like(x_gates_PG)
        extra_PH = torch.empty_like(states_PH[0])
        gates_of = gates_PG.split_with_sizes(batch_sizes)
        views_of = _by_step(cell.forward_views(x_gates_PG, gates_PG, extra_PH), batch_sizes)
        states, entered = entering_NH, []
        for gates, views, produced in zip(gates_of, views_of, _by_step(states_PH, batch_sizes), strict=True):
            if states[0].shape[0] != gates.shape[0]:
                states = tuple(state[: gates.shape[0]] for state in states)
            entered.append(states)
            if b_hh is None:
                torch.mm(states[0], w_hh_t, out=gates)
            else:
                torch.addmm(b_hh, states[0], w_hh_t, out=gates)
            cell.forward_step(views, states, produced)
            states = produced
        entered_PH = tuple(torch.cat(pieces) for pieces in zip(*entered, strict=True))
        ctx.cell, ctx.batch_sizes, ctx.has_bias = cell, batch_sizes, b_hh is not None
        ctx.save_for_backward(w_hh, gates_PG, extra_PH, *entered_PH)
        return states_PH

    @staticmethod
    def backward(ctx: Any, *grad_states_PH: Tensor) -> tuple[Any, ...]:
        # once_differentiable would let a second derivative through, and leave this layer's part out of it.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "backend=scan has a hand-written first derivative and no second one (create_graph=True was asked for). "
                "Choose backend=reference, which autograd differentiates as often as needed."
            )
        cell, batch_sizes = ctx.cell, ctx.batch_sizes
        w_hh, gates_PG, extra_PH, *entered_PH = ctx.saved_tensors
        derivatives_P = cell.derivatives(gates_PG, extra_PH, tuple(entered_PH))
        grad_gates_PG = torch.empty_like(gates_PG)
        grad_gates_of = grad_gates_PG.split_with_sizes(batch_sizes)
        grad_gates_PKH = grad_gates_PG.unflatten(-1, (cell.GATES, -1))
        step_inputs = zip(
            grad_gates_of,
            grad_gates_PKH.split_with_sizes(batch_sizes),
            _by_step(derivatives_P, batch_sizes),
            _by_step(grad_states_PH, batch_sizes),
            strict=True,
        )
        grad_outputs: list[Tensor] = []
        carried = tuple(state.new_zeros(0, state.shape[1]) for state in entered_PH)
        for grad_gates_BG, grad_gates_BKH, derivatives, grads in reversed(list(step_inputs)):
            total = tuple(_add_to_head(grad, carry) for grad, carry in zip(grads, carried, strict=True))
            grad_outputs.append(total[0])
            _, direct, others = cell.backward_step(total, derivatives, grad_gates_BKH)
            carried = (_through_projection(direct, grad_gates_BG, w_hh), *others)
        grad_x_PG = cell.input_gradient(grad_gates_PG, torch.cat(grad_outputs[::-1]), derivatives_P)
        grad_w_hh = grad_gates_PG.t() @ entered_PH[0]
        grad_b_hh = grad_gates_PG.sum(0) if ctx.has_bias else None
        return (None, None, grad_x_PG, grad_w_hh, grad_b_hh, *carried)


def _by_step(packed: tuple[Tensor, ...], batch_sizes: list[int]) -> list[tuple[Tensor, ...]]:
    """Several packed tensors cut into steps: for each step, its piece of every tensor."""
    return list(zip(*(tensor.split_with_sizes(batch_sizes) for tensor in packed), strict=True))


def _add_to_head(grad: Tensor, carry: Tensor) -> Tensor:
    """``grad`` with ``carry`` added to its first rows: the segments that run on have the longer tail."""
    running_on = carry.shape[0]
    if running_on == 0:
        return grad
    if running_on == grad.shape[0]:
        return grad + carry
    return torch.cat((grad[:running_on] + carry, grad[running_on:]))


def _through_projection(direct_BH: Tensor | None, grad_gates_BG: Tensor, w_hh: Tensor) -> Tensor:
    """The gradient of a state: by its direct path, if it has one, and through the recurrent projection."""
    if direct_BH is None:
        return grad_gates_BG @ w_hh
    return torch.addmm(direct_BH, grad_gates_BG, w_hh)


def _traced(
    cell: Cell,
    x_BTI: Tensor,
    segments: Segments,
    stored_states_BTH: tuple[Tensor, ...],
    weights: LayerWeights,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The same by hoptorch's scan over all T steps, which ``torch.compile`` takes whole."""
    x_gates_TBG = functional.linear(x_BTI, weights.w_ih, weights.b_ih).transpose(0, 1).contiguous()
    starts_TB1 = segments.starts_BT.t().unsqueeze(-1).contiguous()
    stored_TBH = tuple(stored_BTH.transpose(0, 1).contiguous() for stored_BTH in stored_states_BTH)
    states_TBH: tuple[Tensor, ...] = _TracedScan.apply(  # type: ignore[no-untyped-call]
        cell, x_gates_TBG, starts_TB1, weights.w_hh, weights.b_hh, *stored_TBH
    )
    states_BTH = tuple(state_TBH.transpose(0, 1) for state_TBH in states_TBH)
    return states_BTH[0], states_BTH


class _TracedScan(torch.autograd.Function):
    """Every state after every step, by a scan forward in time, and a scan backward in time for the gradients.

    torch's own derivative of a scan is not used: it gives wrong gradients for parameters that the step closes over
    (pytorch issue 184528).
    """

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        x_gates_TBG: Tensor,
        starts_TB1: Tensor,
        w_hh: Tensor,
        b_hh: Tensor | None,
        *stored_TBH: Tensor,
    ) -> tuple[Tensor, ...]:
        from hoptorch import scan

        def step(
            carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...]
        ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            x_gates, start, *stored = inputs
            entering = tuple(torch.where(start, s, c) for s, c in zip(stored, carry, strict=True))
            states = cell.activate(x_gates, functional.linear(entering[0], w_hh, b_hh), entering)
            return states, tuple(state.clone() for state in states)

        initial = tuple(stored[0].clone() for stored in stored_TBH)
        _, states_TBH = scan(step, initial, (x_gates_TBG, starts_TB1, *stored_TBH))
        ctx.cell, ctx.states = cell, len(stored_TBH)
        ctx.save_for_backward(x_gates_TBG, starts_TB1, w_hh, b_hh, *stored_TBH, *states_TBH)
        return tuple(states_TBH)

    @staticmethod
    def backward(ctx: Any, *grad_states_TBH: Tensor) -> tuple[Any, ...]:
        from hoptorch import scan

        cell: Cell = ctx.cell
        x_gates_TBG, starts_TB1, w_hh, b_hh, *rest = ctx.saved_tensors
        stored_TBH, states_TBH = rest[: ctx.states], rest[ctx.states :]
        entered_TBH = [
            torch.where(starts_TB1, stored, torch.cat((stored[:1], states[:-1])))
            for stored, states in zip(stored_TBH, states_TBH, strict=True)
        ]
        rows = x_gates_TBG.shape[1]
        entered_PH = tuple(entered.flatten(0, 1) for entered in entered_TBH)
        derivatives_P = _recomputed_derivatives(cell, x_gates_TBG.flatten(0, 1), entered_PH, w_hh, b_hh)
        derivatives_TB = tuple(factor.unflatten(0, (-1, rows)) for factor in derivatives_P)

        def step(
            carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...]
        ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            start, *given = inputs
            grads, derivatives = given[: ctx.states], tuple(given[ctx.states :])
            total = tuple(grad + c for grad, c in zip(grads, carry, strict=True))
            grad_gates_BKH, direct, others = cell.backward_step(total, derivatives, None)
            entering = (_through_projection(direct, grad_gates_BKH.flatten(1), w_hh), *others)
            # At a start the gradient goes to the stored state, and none further back.
            onward = tuple(torch.where(start, 0.0, grad) for grad in entering)
            return onward, (grad_gates_BKH.clone(), total[0].clone(), *(grad.clone() for grad in entering))

        backward_in_time = tuple(value.flip(0) for value in (starts_TB1, *grad_states_TBH, *derivatives_TB))
        initial = tuple(torch.zeros_like(grad[0]) for grad in grad_states_TBH)
        _, results = scan(step, initial, backward_in_time)
        grad_gates_TBKH, grad_output_TBH, *grad_entering_TBH = (value.flip(0) for value in results)
        grad_gates_PG = grad_gates_TBKH.flatten(2).flatten(0, 1)
        grad_x_PG = cell.input_gradient(grad_gates_PG, grad_output_TBH.flatten(0, 1), derivatives_P)
        return (
            None,
            grad_x_PG.unflatten(0, (-1, rows)),
            None,
            grad_gates_PG.t() @ entered_PH[0],
            None if b_hh is None else grad_gates_PG.sum(0),
            *(torch.where(starts_TB1, grad, 0.0) for grad in grad_entering_TBH),
        )


def _recomputed_derivatives(
    cell: Cell, x_gates_PG: Tensor, entered_PH: tuple[Tensor, ...], w_hh: Tensor, b_hh: Tensor | None
) -> tuple[Tensor, ...]:
    """``cell.derivatives`` of all steps from the states that entered them: every step at once, as if rows."""
    gates_PG = functional.linear(entered_PH[0], w_hh, b_hh)
    extra_PH = torch.empty_like(entered_PH[0])
    produced_PH = tuple(torch.empty_like(state) for state in entered_PH)
    cell.forward_step(cell.forward_views(x_gates_PG, gates_PG, extra_PH), entered_PH, produced_PH)
    return cell.derivatives(gates_PG, extra_PH, entered_PH)


def prepare_for_compile(device: torch.device) -> None:
    """Checks hoptorch's scan on ``device``; it must run in eager mode once before ``torch.compile`` traces a scan.

    Raises:
        RuntimeError: hoptorch cannot provide a scan with a right backward here.
    """
    from hoptorch.scan import ensure_scan_backward, scan_unavailable_reason

    if not ensure_scan_backward(device):
        raise RuntimeError(f"backend=scan cannot be compiled on {device}: {scan_unavailable_reason(device)}.")
