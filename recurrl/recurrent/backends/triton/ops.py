"""One layer in one direction as torch custom operators with a first derivative.

``torch.compile`` takes them without graph breaks. torch computes the matmuls over all steps (input projection, weight
gradients), the kernels the recurrence.

Shape legend: P steps of all rows, N lanes, S steps of the longest lane, I input size, H hidden size, K gates, G gate
rows (K × H), W steps of a window of all lanes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recurrl.recurrent.backends.triton.recurrence import BackwardSweep, Recurrence, StepGradients, Window
from recurrl.recurrent.operators import refuse_second_derivative


@torch.library.custom_op("recurrl::recurrent_forward", mutates_args=())
def recurrent_forward(
    keep: bool,
    x_PI: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    stored_PH: list[Tensor],
    bias_4H: Tensor | None,
    starts_P: Tensor,
    lane_begin_N: Tensor,
    lane_length_N: Tensor,
    running_S: list[int],
    precision: str,
    window_steps: int,
) -> list[Tensor]:
    """Returns each state ``[P, H]`` after every step (one for a GRU, two for an LSTM), then the gates ``[P, 4·H]``.

    Args:
        keep: return the gates for the backward pass; otherwise they are empty and it recomputes them.
        x_PI: the input.
        w_ih: ``[G, I]``.
        w_hh: ``[G, H]``.
        stored_PH: stored states, read only where ``starts`` is set. They share their strides.
        bias_4H: biases of the four pre-activations; for a GRU (r, z, n, hₙ).
        starts_P: non-zero where the stored state enters.
        lane_begin_N: first step of each lane (int64), which must be a start. The longest lane comes first.
        lane_length_N: steps of each lane (int32); together the lanes cover every step once.
        running_S: number of lanes running at each step; a single number if constant.
        precision: ``ieee``, ``tf32``, ``tf32x3``, ``bf16``, or ``bf16 emulated`` for triton's interpreter, whose
            bf16 matmuls are wrong.
        window_steps: steps whose gates the backward pass recomputes at a time; 0 for all.
    """
    *states_PH, gates_P4H = _outputs(keep, x_PI, w_ih, w_hh, stored_PH)
    recurrence = Recurrence(w_hh, stored_PH, bias_4H, starts_P, lane_begin_N, lane_length_N, running_S, precision)
    recurrence.forward(_input_gates(x_PI, w_ih, bias_4H), states_PH, gates_P4H)
    return [*states_PH, gates_P4H]


@recurrent_forward.register_fake
def _outputs(
    keep: bool, x_PI: Tensor, w_ih: Tensor, w_hh: Tensor, stored_PH: list[Tensor], *others: Any
) -> list[Tensor]:
    steps, hidden = x_PI.shape[0], w_hh.shape[1]
    return [*(x_PI.new_empty(steps, hidden) for _ in stored_PH), x_PI.new_empty(steps if keep else 0, 4 * hidden)]


@torch.library.custom_op("recurrl::recurrent_backward", mutates_args=())
def recurrent_backward(
    wants_x: bool,
    wants_stored: bool,
    x_PI: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    stored_PH: list[Tensor],
    bias_4H: Tensor | None,
    starts_P: Tensor,
    lane_begin_N: Tensor,
    lane_length_N: Tensor,
    running_S: list[int],
    precision: str,
    window_steps: int,
    states_PH: list[Tensor],
    gates_P4H: Tensor,
    grads_PH: list[Tensor],
) -> list[Tensor]:
    """Computes the gradients of :func:`recurrent_forward`'s inputs.

    Gates that were not kept are recomputed: all at once, or in windows of ``window_steps`` steps from the last to the
    first, so that scratch memory is bounded by a window.

    Returns:
        Gradients of x, w_ih, w_hh, the bias, and the stored states; those of x and the stored states are empty if not
        wanted.
    """
    recurrence = Recurrence(w_hh, stored_PH, bias_4H, starts_P, lane_begin_N, lane_length_N, running_S, precision)
    out = _gradients(wants_x, wants_stored, x_PI, w_ih, w_hh, stored_PH)
    for parameter_gradient in out[1:4]:
        parameter_gradient.zero_()
    sweep = BackwardSweep(recurrence, grads_PH, states_PH, out[4:])
    for window in recurrence.windows(window_steps):
        x_WI = x_PI if window.rows_W is None else x_PI.index_select(0, window.rows_W)
        gates_W4H = gates_P4H
        if not len(gates_P4H):
            x_gates_WG = _input_gates(x_WI, w_ih, bias_4H)
            gates_W4H = recurrence.recompute_gates(x_gates_WG, states_PH, window)
            del x_gates_WG
        _add_gradients(out, sweep.run(window, gates_W4H), x_WI, w_ih, window)
    return out


@recurrent_backward.register_fake
def _gradients(
    wants_x: bool, wants_stored: bool, x_PI: Tensor, w_ih: Tensor, w_hh: Tensor, stored_PH: list[Tensor], *others: Any
) -> list[Tensor]:
    steps, hidden = len(x_PI), w_hh.shape[1]
    return [
        x_PI.new_empty(steps if wants_x else 0, x_PI.shape[1]),
        torch.empty_like(w_ih),
        torch.empty_like(w_hh),
        w_hh.new_empty(4 * hidden),
        *(w_hh.new_empty(steps if wants_stored else 0, hidden) for _ in stored_PH),
    ]


def _input_gates(x_WI: Tensor, w_ih: Tensor, bias_4H: Tensor | None) -> Tensor:
    """The input projection with all biases except that of a GRU's recurrent third gate."""
    return torch.nn.functional.linear(x_WI, w_ih, None if bias_4H is None else bias_4H[: len(w_ih)])


def _add_gradients(out: list[Tensor], found: StepGradients, x_WI: Tensor, w_ih: Tensor, window: Window) -> None:
    """Accumulates a window's parameter gradients and writes its gradient of x."""
    grad_x_PI, grad_w_ih, grad_w_hh, grad_bias_4H, *_ = out
    grad_W4H, entered_WH, bias_4H = found
    grad_x_gates_WG = grad_W4H[:, : len(w_ih)]
    if len(grad_x_PI):
        if window.rows_W is None:
            torch.mm(grad_x_gates_WG, w_ih, out=grad_x_PI)
        else:
            grad_x_PI.index_copy_(0, window.rows_W, grad_x_gates_WG @ w_ih)
    grad_w_ih.addmm_(grad_x_gates_WG.t(), x_WI)
    # The gradient of a GRU's third recurrent projection is in the last columns.
    hidden = entered_WH.shape[1]
    together = 2 * hidden if len(w_ih) == 3 * hidden else 3 * hidden
    grad_w_hh[:together].addmm_(grad_W4H[:, :together].t(), entered_WH)
    grad_w_hh[together:].addmm_(grad_W4H[:, 3 * hidden :].t(), entered_WH)
    grad_bias_4H.add_(bias_4H)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    _, x_PI, w_ih, w_hh, stored_PH, *tensors, ctx.running_S, ctx.precision, ctx.window_steps = inputs
    ctx.states, ctx.wants_x = len(stored_PH), x_PI.requires_grad
    ctx.wants_stored = any(stored.requires_grad for stored in stored_PH)
    ctx.save_for_backward(x_PI, w_ih, w_hh, *tensors, *stored_PH, *output)


def _backward(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    refuse_second_derivative("triton")
    x_PI, w_ih, w_hh, bias_4H, starts_P, lane_begin_N, lane_length_N, *rest = ctx.saved_tensors
    stored_PH, states_PH, gates_P4H = rest[: ctx.states], rest[ctx.states : -1], rest[-1]
    grad_x, grad_w_ih, grad_w_hh, grad_bias, *grad_stored = recurrent_backward(
        *(ctx.wants_x, ctx.wants_stored, x_PI, w_ih, w_hh, stored_PH, bias_4H, starts_P, lane_begin_N, lane_length_N),
        *(ctx.running_S, ctx.precision, ctx.window_steps, states_PH, gates_P4H),
        [grad.contiguous() for grad in grads[: ctx.states]],
    )
    return (
        *(None, grad_x if ctx.wants_x else None, grad_w_ih, grad_w_hh),
        *(grad_stored if ctx.wants_stored else [None] * ctx.states, None if bias_4H is None else grad_bias),
        *(None, None, None, None, None, None),
    )


recurrent_forward.register_autograd(_backward, setup_context=_setup_context)
