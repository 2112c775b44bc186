"""One layer over packed segments: a loop over steps whose batch shrinks as segments end.

Cells with a hand-written derivative run in an autograd Function of their own: one GEMM projects all inputs; the loop
holds the recurrent product and the cell's maths, in place; after the backward loop one GEMM gives each weight gradient.
Other cells are differentiated by autograd.

Shape legend: I input size, H hidden size, O output size (H, or that of the projection), K gates, G gate rows (K × H),
N segments, B segments still running at a step, P packed steps, J columns of the input (I, and one of ones for the
biases), X any of these sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from recurrl.recurrent.backends import LayerWeights, step
from recurrl.recurrent.cells import Cell, HandWritten, is_hand_written


def run(
    cell: Cell, x_PI: Tensor, batch_sizes: list[int], entering_NX: tuple[Tensor, ...], weights: LayerWeights
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The output ``[P, O]`` of every step, and each state ``[N, X]`` after each segment's last step."""
    if not is_hand_written(cell):
        return _by_autograd(cell, x_PI, batch_sizes, entering_NX, weights)
    output_PO, *last_NX = _PackedLayer.apply(  # type: ignore[no-untyped-call]
        cell, batch_sizes, x_PI, *weights, *entering_NX
    )
    return output_PO, tuple(last_NX)


def run_in_chunks(
    cell: Cell,
    x_PI: Tensor,
    batch_sizes: list[int],
    entering_NX: tuple[Tensor, ...],
    weights: LayerWeights,
    chunk_len: int | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """As ``run``, keeping the states at every ``chunk_len``-th of the S steps only, about the √S-th if it is None; the
    backward pass runs each chunk again.
    """
    steps = chunk_len or math.isqrt(max(len(batch_sizes) - 1, 0)) + 1
    outputs: list[Tensor] = []
    ended: list[tuple[Tensor, ...]] = []
    running = entering_NX
    chunks = [batch_sizes[first : first + steps] for first in range(0, len(batch_sizes), steps)]
    going_on = [sizes[0] for sizes in chunks[1:]] + [0]
    for sizes, x, rest in zip(chunks, x_PI.split_with_sizes([sum(s) for s in chunks]), going_on, strict=True):
        output, last = checkpoint(run, cell, x, sizes, running, weights, use_reentrant=False)
        outputs.append(output)
        ended.append(tuple(state[rest:] for state in last))
        running = _rows(last, 0, rest)
    # The segments that end first are the last ones of the packed order.
    return torch.cat(outputs), tuple(torch.cat(pieces) for pieces in zip(*reversed(ended), strict=True))


def _by_autograd(
    cell: Cell, x_PI: Tensor, batch_sizes: list[int], entering_NX: tuple[Tensor, ...], weights: LayerWeights
) -> tuple[Tensor, tuple[Tensor, ...]]:
    x_gates_PG = functional.linear(x_PI, weights.w_ih, weights.b_ih)
    states = entering_NX
    history = []
    for x_gates_BG in x_gates_PG.split_with_sizes(batch_sizes):
        states = step(cell, weights, x_gates_BG, _rows(states, 0, len(x_gates_BG)))
        history.append(states)
    return torch.cat([states[0] for states in history]), _last(history, batch_sizes)


def _last(history: Sequence[tuple[Tensor, ...]], batch_sizes: list[int]) -> tuple[Tensor, ...]:
    """Each state after each segment's last step, from the states after every step."""
    pieces = []
    begin = 0
    for states, size in zip(reversed(history), reversed(batch_sizes), strict=True):
        if size > begin:
            pieces.append(_rows(states, begin, size))
            begin = size
    return tuple(torch.cat(piece) for piece in zip(*pieces, strict=True))


def _rows(states: tuple[Tensor, ...], begin: int, end: int) -> tuple[Tensor, ...]:
    return tuple(state[begin:end] for state in states)


def _by_step(packed: tuple[Tensor, ...], batch_sizes: list[int]) -> list[tuple[Tensor, ...]]:
    """Several packed tensors cut into steps: for each step, its piece of every tensor."""
    return list(zip(*(tensor.split_with_sizes(batch_sizes) for tensor in packed), strict=True))


def _project_inputs(cell: HandWritten, x_PJ: Tensor, weights: LayerWeights, hidden: int) -> tuple[Tensor, Tensor]:
    """The input projections in the memory that the steps work in: ``gates [P, G]`` and ``apart [P, APART × H]``.

    All biases are in them: the recurrent one is the same at every step. ``x`` has a column of ones for them, if any:
    that is faster than a product that begins with a copy of the bias to every row.
    """
    w_ih, _, b_ih, b_hh, _ = weights
    together = w_ih.shape[0] - cell.APART * hidden
    if b_ih is not None and b_hh is not None:
        bias = torch.cat((b_ih[:together] + b_hh[:together], b_ih[together:]))
        w_ih = torch.cat((w_ih, bias.unsqueeze(1)), 1)
    gates_PG = x_PJ.new_empty(x_PJ.shape[0], w_ih.shape[0])
    torch.mm(x_PJ, w_ih[:together].t(), out=gates_PG[:, :together])
    gates_PG[:, together:] = 0.0 if b_hh is None else b_hh[together:]
    return gates_PG, x_PJ @ w_ih[together:].t()


class _PackedLayer(torch.autograd.Function):
    """The output of every packed step and the last states, from the packed inputs and the states entering."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: Any,
        batch_sizes: list[int],
        x_PI: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        w_hr: Tensor | None,
        *entering_NX: Tensor,
    ) -> tuple[Tensor, ...]:
        weights = LayerWeights(w_ih, w_hh, b_ih, b_hh, w_hr)
        steps, hidden = x_PI.shape[0], w_ih.shape[0] // cell.GATES
        x_PJ = x_PI if b_ih is None else torch.cat((x_PI, x_PI.new_ones(steps, 1)), 1)
        gates_PG, apart_PA = _project_inputs(cell, x_PJ, weights, hidden)
        # What the cell calls its output, and, where that is projected, the output.
        cell_states_PH = tuple(x_PI.new_empty(steps, hidden) for _ in entering_NX)
        states_PX = cell_states_PH
        if w_hr is not None:
            states_PX = (x_PI.new_empty(steps, w_hr.shape[0]), *cell_states_PH[1:])
        views_of = _by_step(cell.forward_views(gates_PG, apart_PA), batch_sizes)
        cell_states_of = _by_step(cell_states_PH, batch_sizes)
        states_of = _by_step(states_PX, batch_sizes)
        w_hh_t = w_hh.t()
        states, entered = entering_NX, []
        for size, gates, views, cell_states, produced in zip(
            batch_sizes, gates_PG.split_with_sizes(batch_sizes), views_of, cell_states_of, states_of, strict=True
        ):
            if states[0].shape[0] != size:
                states = _rows(states, 0, size)
            entered.append(states)
            gates.addmm_(states[0], w_hh_t)
            cell.forward_step(views, states, cell_states)
            if w_hr is not None:
                torch.mm(cell_states[0], w_hr.t(), out=produced[0])
            states = produced
        last_NX = _last(states_of, batch_sizes)
        entered_PX = tuple(torch.cat(pieces) for pieces in zip(*entered, strict=True))
        ctx.cell, ctx.batch_sizes, ctx.states = cell, batch_sizes, len(entering_NX)
        ctx.set_materialize_grads(False)
        # The first state is the output: the derivatives do not need it, but a projection's weight gradient does.
        left_PH = cell_states_PH if w_hr is not None else (None, *cell_states_PH[1:])
        ctx.save_for_backward(x_PJ, w_ih, w_hh, w_hr, gates_PG, apart_PA, *entered_PX, *left_PH)
        return states_PX[0], *last_NX

    @staticmethod
    def backward(ctx: Any, grad_output_PO: Tensor | None, *grad_last_NX: Tensor | None) -> tuple[Any, ...]:
        # once_differentiable would let a second derivative through, and leave this layer's part out of it.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "backend=scan has a hand-written first derivative and no second one (create_graph=True was asked for). "
                "Choose backend=reference, which autograd differentiates as often as needed."
            )
        cell, batch_sizes = ctx.cell, ctx.batch_sizes
        x_PJ, w_ih, w_hh, w_hr, gates_PG, apart_PA, *rest = ctx.saved_tensors
        entered_PX, left_PH = rest[: ctx.states], rest[ctx.states :]
        derivatives_P = cell.derivatives(gates_PG, apart_PA, tuple(entered_PX), tuple(left_PH))
        grad_gates_PG = derivatives_P[0].flatten(1)
        # The gradient of each segment's running state. Segments that have ended wait in their rows for their turn.
        grads_NX = tuple(
            entered.new_zeros(batch_sizes[0], entered.shape[1]) if grad is None else grad.clone()
            for entered, grad in zip(entered_PX, grad_last_NX, strict=True)
        )
        views_of = _by_step(cell.backward_views(derivatives_P), batch_sizes)
        grad_gates_of = grad_gates_PG.split_with_sizes(batch_sizes)
        grad_output_of = None if grad_output_PO is None else grad_output_PO.split_with_sizes(batch_sizes)
        grad_projected = []
        grads = _rows(grads_NX, 0, 0)
        for t in reversed(range(len(batch_sizes))):
            if grads[0].shape[0] != batch_sizes[t]:
                grads = _rows(grads_NX, 0, batch_sizes[t])
            if grad_output_of is not None:
                grads[0].add_(grad_output_of[t])
            if w_hr is None:
                cell.backward_step(views_of[t], grads)
            else:
                grad_projected.append(grads[0].clone())
                cell.backward_step(views_of[t], (grads[0] @ w_hr, *grads[1:]))
            grads[0].addmm_(grad_gates_of[t], w_hh, beta=1 if cell.DIRECT else 0)
        grad_x, grad_w_ih, grad_b_ih, grad_b_hh = _input_gradients(
            cell, x_PJ, w_ih, derivatives_P, ctx.needs_input_grad[2]
        )
        grad_w_hh = grad_gates_PG.t() @ entered_PX[0]
        grad_w_hr = None if w_hr is None else torch.cat(grad_projected[::-1]).t() @ left_PH[0]
        return None, None, grad_x, grad_w_ih, grad_w_hh, grad_b_ih, grad_b_hh, grad_w_hr, *grads_NX


def _input_gradients(
    cell: Any, x_PJ: Tensor, w_ih: Tensor, grads_P: tuple[Tensor, ...], wants_x: bool
) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor | None]:
    """Those of x, w_ih, b_ih and b_hh. The gates that keep their projections apart have a gradient for each."""
    grad_gates_PG = grads_P[0].flatten(1)
    grad_apart_PA = grads_P[1] if cell.APART else grad_gates_PG[:, :0]
    together, inputs = w_ih.shape[0] - grad_apart_PA.shape[1], w_ih.shape[1]
    grad_together = grad_gates_PG[:, :together]
    grad_w = w_ih.new_empty(w_ih.shape[0], x_PJ.shape[1])
    torch.mm(grad_together.t(), x_PJ, out=grad_w[:together])
    torch.mm(grad_apart_PA.t(), x_PJ, out=grad_w[together:])
    grad_x = None
    if wants_x:
        grad_x = grad_together @ w_ih[:together]
        if cell.APART:
            grad_x.addmm_(grad_apart_PA, w_ih[together:])
    if x_PJ.shape[1] == inputs:
        return grad_x, grad_w, None, None
    # The column of ones has collected the biases' gradients.
    grad_b_ih = grad_w[:, inputs].clone()
    grad_b_hh = torch.cat((grad_b_ih[:together], grad_gates_PG[:, together:].sum(0)))
    return grad_x, grad_w[:, :inputs].contiguous(), grad_b_ih, grad_b_hh
