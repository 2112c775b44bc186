"""One layer by torch's scan over all T steps of the rows, without graph breaks under ``torch.compile``.

Shape legend: B rows, T steps, I input size, H hidden size, O output size (H, or that of the projection), K gates, G
gate rows (K × H), P steps of all rows (T·B, time first), X any of these sizes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch.nn import functional

from recurrl.recurrent.cell import Cell, Weights
from recurrl.recurrent.gated import is_hand_written
from recurrl.recurrent.segments import Segments


# The compiler runs this while it traces, before it lowers the scan.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _let_inductor_lower_scans() -> None:
    """Inductor turns a scan into a loop that reads its index from a tensor, which is off by default."""
    torch._dynamo.config.capture_scalar_outputs = True


def run(
    cell: Cell, x_BTI: Tensor, segments: Segments, stored_states_BTX: tuple[Tensor, ...], weights: Weights
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Returns the outputs ``[B, T, O]``, and each state at the last step of every segment, zero elsewhere.

    Raises:
        ValueError: the cell has no hand-written derivative.
    """
    x_gates_BTG = cell.project(weights, x_BTI)
    if not is_hand_written(cell):
        raise ValueError(
            "backend=scan under torch.compile needs a cell with a hand-written derivative: torch's own derivative of a "
            "scan is wrong for parameters the step closes over. Choose backend=reference, which the compiler unrolls, "
            "or run without torch.compile."
        )
    _let_inductor_lower_scans()
    x_gates_TBG = x_gates_BTG.transpose(0, 1).contiguous()
    starts_TB1 = segments.starts_BT.t().unsqueeze(-1).contiguous()
    stored_TBX = tuple(stored.transpose(0, 1).contiguous() for stored in stored_states_BTX)
    recurrent = [weights.get(name) for name in ("weight_hh", "bias_hh", "weight_hr")]
    arguments: tuple[Any, ...] = (cell, x_gates_TBG, starts_TB1, *recurrent, *stored_TBX)
    # The compiler mixes up the arguments of an autograd Function that needs no gradient.
    run_scan = _TracedScan.apply if torch.is_grad_enabled() else _forward_in_time
    states_TBX: tuple[Tensor, ...] = run_scan(*arguments)
    states_BTX = tuple(state.transpose(0, 1) for state in states_TBX)
    return states_BTX[0], tuple(segments.only_ends(state) for state in states_BTX)


def _forward_in_time(
    cell: Any,
    x_gates_TBG: Tensor,
    starts_TB1: Tensor,
    w_hh: Tensor,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
    *stored_TBX: Tensor,
) -> tuple[Tensor, ...]:
    """Returns every state after every step."""
    weights: dict[str, Any] = {"weight_hh": w_hh, "bias_hh": b_hh, "weight_hr": w_hr}

    def one_step(
        carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        x_gates, start, *stored = inputs
        entering = tuple(torch.where(start, s, c) for s, c in zip(stored, carry, strict=True))
        _, states = cell.step(weights, x_gates, entering)
        return states, tuple(state.clone() for state in states)

    initial = tuple(stored[0].clone() for stored in stored_TBX)
    _, states_TBX = scan(one_step, initial, (x_gates_TBG, starts_TB1, *stored_TBX))
    return tuple(states_TBX)


class _TracedScan(torch.autograd.Function):
    """Every state after every step: a scan forward in time, and one backward in time for the gradients.

    torch's own derivative of a scan, which is not used, gives wrong gradients for parameters that the step closes over
    (pytorch issue 184528).
    """

    @staticmethod
    def forward(
        ctx: Any,
        cell: Any,
        x_gates_TBG: Tensor,
        starts_TB1: Tensor,
        w_hh: Tensor,
        b_hh: Tensor | None,
        w_hr: Tensor | None,
        *stored_TBX: Tensor,
    ) -> tuple[Tensor, ...]:
        states_TBX = _forward_in_time(cell, x_gates_TBG, starts_TB1, w_hh, b_hh, w_hr, *stored_TBX)
        ctx.cell, ctx.states = cell, len(stored_TBX)
        ctx.save_for_backward(x_gates_TBG, starts_TB1, w_hh, b_hh, w_hr, *stored_TBX, *states_TBX)
        return states_TBX

    @staticmethod
    def backward(ctx: Any, *grad_states_TBX: Tensor) -> tuple[Any, ...]:
        cell = ctx.cell
        x_gates_TBG, starts_TB1, w_hh, b_hh, w_hr, *rest = ctx.saved_tensors
        stored_TBX, states_TBX = rest[: ctx.states], rest[ctx.states :]
        before_TBX = [
            torch.where(starts_TB1, stored, torch.cat((stored[:1], states[:-1])))
            for stored, states in zip(stored_TBX, states_TBX, strict=True)
        ]
        rows = x_gates_TBG.shape[1]
        before_PX = tuple(entered.flatten(0, 1) for entered in before_TBX)
        factors_P, after_PH = _factors(cell, x_gates_TBG.flatten(0, 1), before_PX, w_hh, b_hh)

        def backward_in_time(
            carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...]
        ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            start, *given = inputs
            output_grads = given[: ctx.states]
            factors, *others = (factor.clone() for factor in given[ctx.states :])
            grads = tuple(grad + c for grad, c in zip(output_grads, carry, strict=True))
            grad_output = grads[0].clone()
            grad_before = torch.zeros_like(grad_output)
            if w_hr is not None:
                grads = (grads[0] @ w_hr, *grads[1:])
            grads_B1H = tuple(grad.unsqueeze(1) for grad in grads)
            cell.backward_step(cell.backward_views(factors, tuple(others)), grads_B1H, grad_before.unsqueeze(1))
            through_projection = _split_last(factors, cell).flatten(1) @ w_hh
            entering = (grad_before + through_projection, *grads[1:])
            # At a start the gradient goes to the stored state and no further back.
            carried = tuple(torch.where(start, 0.0, grad) for grad in entering)
            return carried, (grad_output, *(value.clone() for value in (factors, *entering)))

        initial = tuple(torch.zeros_like(grad[0]) for grad in grad_states_TBX)
        factors_TB = tuple(factor.unflatten(0, (-1, rows)) for factor in factors_P)
        inputs = tuple(value.flip(0) for value in (starts_TB1, *grad_states_TBX, *factors_TB))
        _, results = scan(backward_in_time, initial, inputs)
        grad_output_PO, grads_PAH, *others = (value.flip(0).flatten(0, 1) for value in results)
        grad_gates_PG = _split_last(grads_PAH, cell).flatten(1)
        grad_x_PG = grads_PAH[:, cell.SPLIT_GATES :].flatten(1)
        grad_stored = (torch.where(starts_TB1, grad.unflatten(0, (-1, rows)), 0.0) for grad in others)
        return (
            None,
            grad_x_PG.unflatten(0, (-1, rows)),
            None,
            grad_gates_PG.t() @ before_PX[0],
            None if b_hh is None else grad_gates_PG.sum(0),
            None if w_hr is None else grad_output_PO.t() @ after_PH[0],
            *grad_stored,
        )


def _factors(
    cell: Any, x_gates_PG: Tensor, before_PX: tuple[Tensor, ...], w_hh: Tensor, b_hh: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """``cell.derivatives`` and the unprojected states of all steps at once, from the states before each step."""
    h_gates_PG = functional.linear(before_PX[0], w_hh, b_hh)
    hidden = x_gates_PG.shape[1] // cell.GATES
    together = x_gates_PG.shape[1] - cell.SPLIT_GATES * hidden
    sums_PG = x_gates_PG[:, :together] + h_gates_PG[:, :together]
    gates_PA = torch.cat((h_gates_PG[:, together:], sums_PG, x_gates_PG[:, together:]), 1)
    after_PH = tuple(x_gates_PG.new_empty(x_gates_PG.shape[0], hidden) for _ in before_PX)
    cell.forward_step(cell.forward_views(gates_PA), before_PX, after_PH)
    factors_PAH = torch.empty_like(gates_PA).unflatten(1, (-1, hidden))
    others = cell.derivatives(gates_PA, before_PX, after_PH, factors_PAH)
    return (factors_PAH, *(other.clone() for other in others)), after_PH


def _split_last(factors_PAH: Tensor, cell: Any) -> Tensor:
    """Factors of the recurrent projections ``[P, K, H]``, in weight order: split gates last."""
    return torch.cat((factors_PAH[:, cell.SPLIT_GATES : cell.GATES], factors_PAH[:, : cell.SPLIT_GATES]), 1)
