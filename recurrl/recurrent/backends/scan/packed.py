"""One layer over packed segments: a loop over steps whose batch shrinks as segments end.

Cells with a hand-written derivative run in a custom autograd Function: one matmul projects all inputs; the loop does
only the recurrent matmul and the cell's maths, in place; after the backward loop one matmul computes each weight
gradient. Other cells are differentiated by autograd.

Work that spans all steps is done a few megabytes at a time, to stay in the processor's cache. The initial states and
those after each packed step share one buffer, and so do their gradients, which the backward loop walks in reverse.

Shape legend: I input size, H hidden size, O output size (H, or that of the projection), K gates, A gates that memory is
kept for (see :class:`~recurrl.recurrent.gated.HandWritten`), G gate rows (K × H), N segments, B segments running at a
step, P packed steps, R rows of memory for states (N + P), C packed steps of a few time steps, X any of these sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from recurrl.recurrent.backends.scan import products
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.gated import WEIGHTS, HandWritten, is_hand_written
from recurrl.recurrent.segments import Steps

# Memory for the backward pass's factors, on a CPU.
_BYTES_AT_ONCE = 8 << 20


def run(cell: Cell, x_PI: Tensor, steps: Steps, entering_NX: States, weights: Weights) -> tuple[Tensor, States]:
    """Returns the output ``[P, O]`` of every step, and each state ``[N, ...]`` after each segment's last step.

    Input and output are in row order if ``steps`` has their positions (only for cells with a hand-written derivative),
    else packed.
    """
    if is_hand_written(cell):
        output_PO, *last_NX = _PackedLayer.apply(  # type: ignore[no-untyped-call]
            cell, steps, x_PI, *map(weights.get, WEIGHTS), *entering_NX
        )
        return output_PO, tuple(last_NX)
    return _by_autograd(cell, x_PI, steps, entering_NX, weights)


def run_in_chunks(
    cell: Cell,
    x_PI: Tensor,
    steps: Steps,
    entering_NX: States,
    weights: Weights,
    chunk_len: int | None,
) -> tuple[Tensor, States]:
    """Like ``run`` on packed steps, but keeps states only every ``chunk_len`` of the S steps (default: about √S); the
    backward pass recomputes each chunk.
    """
    at_once = chunk_len or math.isqrt(max(len(steps.sizes) - 1, 0)) + 1
    outputs: list[Tensor] = []
    ended: list[tuple[Tensor, ...]] = []
    running = entering_NX
    chunks = [steps.sizes[first : first + at_once] for first in range(0, len(steps.sizes), at_once)]
    continuing = [sizes[0] for sizes in chunks[1:]] + [0]
    for sizes, x, rest in zip(chunks, x_PI.split_with_sizes([sum(s) for s in chunks]), continuing, strict=True):
        output, last = checkpoint(run, cell, x, Steps.of_sizes(sizes, x.device), running, weights, use_reentrant=False)
        outputs.append(output)
        ended.append(tuple(state[rest:] for state in last))
        running = _rows(last, 0, rest)
    # Segments that end first come last in packed order.
    return torch.cat(outputs), tuple(torch.cat(pieces) for pieces in zip(*reversed(ended), strict=True))


def _by_autograd(
    cell: Cell, x_PI: Tensor, steps: Steps, entering_NX: States, weights: Weights
) -> tuple[Tensor, States]:
    states = entering_NX
    outputs: list[Tensor] = []
    history: list[States] = []
    for x in cell.project(weights, x_PI).split_with_sizes(steps.sizes):
        output, states = cell.step(weights, x, _rows(states, 0, len(x)))
        outputs.append(output)
        history.append(states)
    return torch.cat(outputs), _last(history, steps.sizes)


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


def _split_by_step(packed: Sequence[Tensor], sizes: list[int]) -> list[tuple[Tensor, ...]]:
    """Splits several packed tensors into steps: for each step, its piece of every tensor."""
    return list(zip(*(tensor.split_with_sizes(sizes) for tensor in packed), strict=True))


def _split_first(rows_GX: Tensor, split: int) -> Tensor:
    """The rows of a recurrent weight in the cell's memory order: split gates first."""
    return torch.cat((rows_GX[-split:], rows_GX[:-split])) if split else rows_GX


def _split_last(rows_GX: Tensor, split: int) -> Tensor:
    """Inverse of ``_split_first``; always copies."""
    return torch.cat((rows_GX[split:], rows_GX[:split]))


class _PackedLayer(torch.autograd.Function):
    """Outputs of all steps and the last states, from the inputs and initial states."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: Any,
        steps: Steps,
        x_PI: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        w_hr: Tensor | None,
        *entering_NX: Tensor,
    ) -> tuple[Tensor, ...]:
        split = cell.SPLIT_GATES * (w_ih.shape[0] // cell.GATES)
        gates_PA = _project_inputs(x_PI, steps, w_ih, b_ih, b_hh, split)
        states_RX = tuple(_allocate_states(entering, len(x_PI)) for entering in entering_NX)
        # With a projection, the cell's own output is an intermediate.
        unprojected_PH = None if w_hr is None else x_PI.new_empty(len(x_PI), w_hr.shape[1])
        _run_forward(cell, steps.sizes, gates_PA, states_RX, _split_first(w_hh, split), w_hr, unprojected_PH)
        ctx.cell, ctx.steps, ctx.split, ctx.has_biases = cell, steps, split, b_ih is not None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x_PI, w_ih, w_hh, w_hr, unprojected_PH, gates_PA, *states_RX)
        output_PO = steps.unpacked(states_RX[0][steps.sizes[0] :])
        return output_PO, *(state.index_select(0, steps.last_N) for state in states_RX)

    @staticmethod
    def backward(ctx: Any, grad_output_PO: Tensor | None, *grad_last_NX: Tensor | None) -> tuple[Any, ...]:
        # once_differentiable would silently omit this layer from a second derivative.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "backend=scan supports first derivatives only, but create_graph=True asks for a second one. "
                "Choose backend=reference, which supports any order."
            )
        cell, steps = ctx.cell, ctx.steps
        x_PI, w_ih, w_hh, w_hr, unprojected_PH, gates_PA, *states_RX = ctx.saved_tensors
        grads_RO = _gradients_of_outputs(grad_output_PO, grad_last_NX[0], states_RX[0], steps)
        others_N1X = tuple(
            state.new_zeros(steps.sizes[0], 1, state.shape[1]) if grad is None else grad.unsqueeze(1).clone()
            for state, grad in zip(states_RX[1:], grad_last_NX[1:], strict=True)
        )
        back = _BackwardLoop(cell, steps.sizes, grads_RO, others_N1X, _split_first(w_hh, ctx.split), w_hr)
        # Initial states need no gradient if they are data, as stored states are.
        back.wants_entering = ctx.needs_input_grad[8]
        sums = _WeightGradients(x_PI, steps, w_ih, w_hh, ctx.needs_input_grad[2])
        chunks = _chunks(steps.sizes, _rows_at_once(gates_PA))
        most = max(end - begin for *_, begin, end in chunks) + products.rounded_up(1)
        memory_CA = gates_PA.new_empty(most, gates_PA.shape[1])
        for first, last, begin, end in reversed(chunks):
            factors_CA = memory_CA[: end - begin]
            factors_CAH = factors_CA.unflatten(1, (cell.GATES + cell.SPLIT_GATES, -1))
            before_CX = tuple(steps.entered(state, begin, end) for state in states_RX)
            after_CX = tuple(state[steps.sizes[0] + begin : steps.sizes[0] + end] for state in states_RX)
            others_C1H = cell.derivatives(gates_PA[begin:end], before_CX, after_CX, factors_CAH)
            back.run(first, last, memory_CA, cell.backward_views(factors_CAH, others_C1H))
            sums.add(begin, end, factors_CA, before_CX[0])
        grad_w_hr = None if w_hr is None else grads_RO[steps.sizes[0] :].t() @ unprojected_PH
        entering = (grads_RO[: steps.sizes[0]], *(grad.squeeze(1) for grad in others_N1X))
        return None, None, sums.x_PI, *sums.weights(ctx.split, ctx.has_biases), grad_w_hr, *entering


def _project_inputs(
    x_PI: Tensor, steps: Steps, w_ih: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, split: int
) -> Tensor:
    """Allocates the gates' memory and fills it with input projections and biases."""
    gates_PA = x_PI.new_empty(len(x_PI), split + len(w_ih))
    if b_ih is None or b_hh is None:
        bias_A = gates_PA.new_zeros(gates_PA.shape[1])
    else:
        both = len(w_ih) - split
        bias_A = torch.cat((b_hh[both:], b_ih[:both] + b_hh[:both], b_ih[both:]))
    projected_PG, w_ih_t = gates_PA[:, split:], w_ih.t()
    for begin, end, is_large in products.blocks(len(x_PI), products.min_rows(x_PI, *w_ih_t.shape)):
        x = steps.packed(x_PI, begin, end)
        if is_large:
            gates_PA[begin:end, :split] = bias_A[:split]
            projected_PG[begin:end] = products.onednn_linear(x, w_ih, bias_A[split:])
        else:
            gates_PA[begin:end] = bias_A
            projected_PG[begin:end].addmm_(x, w_ih_t)
    return gates_PA


def _allocate_states(entering_NX: Tensor, steps: int) -> Tensor:
    states_RX = entering_NX.new_empty(len(entering_NX) + steps, entering_NX.shape[1])
    states_RX[: len(entering_NX)] = entering_NX
    return states_RX


def _run_forward(
    cell: HandWritten,
    sizes: list[int],
    gates_PA: Tensor,
    states_RX: tuple[Tensor, ...],
    w_hh: Tensor,
    w_hr: Tensor | None,
    unprojected_PH: Tensor | None,
) -> None:
    """Runs every step in preallocated memory."""
    w_hh_t = w_hh.t()
    least = products.min_rows(gates_PA, *w_hh_t.shape)
    states, *states_of = _split_by_step(states_RX, [sizes[0], *sizes])
    recurrent_of = gates_PA[:, : len(w_hh)].split_with_sizes(sizes)
    views_of = _split_by_step(cell.forward_views(gates_PA), sizes)
    outputs_of = None if unprojected_PH is None else unprojected_PH.split_with_sizes(sizes)
    begin = 0
    for t, (size, recurrent, views, produced) in enumerate(zip(sizes, recurrent_of, views_of, states_of, strict=True)):
        width = len(states[0])
        if size >= least:
            padded = states_RX[0][begin : begin + products.rounded_up(size)]
            recurrent.add_(products.onednn_linear(padded, w_hh)[:size])
        begin += width
        if width != size:
            states = _rows(states, 0, size)
        if size < least:
            recurrent.addmm_(states[0], w_hh_t)
        if w_hr is None or outputs_of is None:
            cell.forward_step(views, states, produced)
        else:
            cell.forward_step(views, states, (outputs_of[t], *produced[1:]))
            torch.mm(outputs_of[t], w_hr.t(), out=produced[0])
        states = produced


def _gradients_of_outputs(
    grad_output_PO: Tensor | None, grad_last_NO: Tensor | None, states_RO: Tensor, steps: Steps
) -> Tensor:
    """Gradients ``[R, O]`` of the first state from the outputs and last states; zero for the initial states."""
    entering = steps.sizes[0]
    if grad_output_PO is None:
        grads_RO = torch.zeros_like(states_RO)
    else:
        grads_RO = torch.empty_like(states_RO)
        grads_RO[:entering] = 0.0
        steps.pack_into(grad_output_PO, grads_RO[entering:])
    return grads_RO if grad_last_NO is None else grads_RO.index_add_(0, steps.last_N, grad_last_NO)


def _rows_at_once(gates_PA: Tensor) -> int:
    if gates_PA.device.type != "cpu":
        return len(gates_PA)
    return _BYTES_AT_ONCE // (gates_PA.shape[1] * gates_PA.element_size())


def _chunks(sizes: list[int], rows_at_once: int) -> list[tuple[int, int, int, int]]:
    """Chunks of whole time steps as ``(first step, end step, first row, end row)``, ends exclusive. Only a chunk of a
    single step may exceed ``rows_at_once``.
    """
    chunks = []
    first = begin = end = 0
    for t, size in enumerate(sizes):
        if end > begin and end + size - begin > rows_at_once:
            chunks.append((first, t, begin, end))
            first, begin = t, end
        end += size
    return [*chunks, (first, len(sizes), begin, end)]


class _BackwardLoop:
    """The loop backwards in time, chunk by chunk."""

    wants_entering = True
    """Compute the gradient of the first initial state."""

    def __init__(
        self,
        cell: HandWritten,
        sizes: list[int],
        grads_RO: Tensor,
        others_N1X: tuple[Tensor, ...],
        w_hh: Tensor,
        w_hr: Tensor | None,
    ) -> None:
        self.cell, self.sizes, self.w_hh, self.w_hr = cell, sizes, w_hh, w_hr
        self.others = self.others_N1X = others_N1X
        # Entry t is the gradient before step t, as a matrix and with a gate dimension.
        self.grads_of = _split_by_step((grads_RO, grads_RO.unsqueeze(1)), [sizes[0], *sizes])
        self.least = products.min_rows(grads_RO, *w_hh.shape)

    def run(self, first: int, last: int, factors_CA: Tensor, views_C: tuple[Tensor, ...]) -> None:
        """Runs steps ``last − 1`` down to ``first``; overwrites the factors with the projections' gradients."""
        sizes = self.sizes[first:last]
        factors_CG = factors_CA[:, : len(self.w_hh)]
        begin = sum(sizes)
        recurrent_of = factors_CG[:begin].split_with_sizes(sizes)
        views_of = _split_by_step(views_C, sizes)
        for t in reversed(range(first, last)):
            size = self.sizes[t]
            begin -= size
            (grad_before, grad_before_B1O), (grad, grad_B1O) = self.grads_of[t], self.grads_of[t + 1]
            if len(grad_before) != size:
                grad_before, grad_before_B1O = grad_before[:size], grad_before_B1O[:size]
            if self.others and len(self.others[0]) != size:
                self.others = _rows(self.others_N1X, 0, size)
            if self.w_hr is not None:
                grad_B1O = (grad @ self.w_hr).unsqueeze(1)
            self.cell.backward_step(views_of[t - first], (grad_B1O, *self.others), grad_before_B1O)
            if t == 0 and not self.wants_entering:
                continue
            if size >= self.least:
                padded = factors_CG[begin : begin + products.rounded_up(size)]
                grad_before.add_(products.onednn_linear(padded, self.w_hh.t())[:size])
            else:
                grad_before.addmm_(recurrent_of[t - first], self.w_hh)


class _WeightGradients:
    """Accumulates weight, bias and input gradients from the projections' gradients, chunk by chunk."""

    def __init__(self, x_PI: Tensor, steps: Steps, w_ih: Tensor, w_hh: Tensor, wants_x: bool) -> None:
        self.x, self.steps, self.w_ih = x_PI, steps, w_ih
        self.x_PI = torch.empty_like(x_PI) if wants_x else None
        self.w_ih_GI, self.w_hh_GO = (_zeros_for(weight, len(x_PI)) for weight in (w_ih, w_hh))
        self.bias_A: Tensor | None = None

    def add(self, begin: int, end: int, grads_CA: Tensor, before_CO: Tensor) -> None:
        """Adds the contribution of packed steps ``begin`` to ``end``."""
        rows = end - begin
        for a, b, is_large in products.blocks(rows, products.min_rows(grads_CA, *self.w_ih.shape)):
            grads = _columns(grads_CA[a:b, -len(self.w_ih) :], is_large)
            _add_product(self.w_ih_GI, self.steps.packed(self.x, begin + a, begin + b), grads, is_large)
            if self.x_PI is not None:
                grad_x = products.onednn_linear(grads, self.w_ih.t()) if is_large else grads @ self.w_ih
                self.steps.unpack_into(grad_x, self.x_PI, begin + a, begin + b)
        for a, b, is_large in products.blocks(rows, products.min_rows(grads_CA, *self.w_hh_GO.shape)):
            grads = _columns(grads_CA[a:b, : len(self.w_hh_GO)], is_large)
            _add_product(self.w_hh_GO, before_CO[a:b], grads, is_large)
        bias_A = grads_CA.sum(0)
        self.bias_A = bias_A if self.bias_A is None else self.bias_A.add_(bias_A)

    def weights(self, split: int, has_biases: bool) -> tuple[Tensor | None, ...]:
        """Gradients of w_ih, w_hh, b_ih and b_hh."""
        weights = (self.w_ih_GI.contiguous(), _split_last(self.w_hh_GO, split))
        if not has_biases or self.bias_A is None:
            return *weights, None, None
        return *weights, self.bias_A[split:], _split_last(self.bias_A[: len(self.w_hh_GO)], split)


def _columns(grads_CG: Tensor, is_large: bool) -> Tensor:
    # oneDNN takes either layout, but is a hundred times slower if the rows are not adjacent in memory.
    return grads_CG.contiguous() if is_large else grads_CG


def _zeros_for(weight_GX: Tensor, steps: int) -> Tensor:
    """Zeros; transposed in memory where oneDNN accumulates into them, which is faster."""
    if steps >= products.min_rows(weight_GX, *weight_GX.shape):
        return weight_GX.new_zeros(weight_GX.shape[::-1]).t()
    return weight_GX.new_zeros(weight_GX.shape)


def _add_product(total_GX: Tensor, values_CX: Tensor, grads_CG: Tensor, is_large: bool) -> None:
    if is_large:
        total_GX.t().add_(products.onednn_linear(values_CX.t(), grads_CG.t()))
    else:
        total_GX.addmm_(grads_CG.t(), values_CX)
