"""The kernels as operators of torch, which autograd differentiates once and ``torch.compile`` takes whole.

Shape legend: P steps of all rows, N lanes, H hidden size, G gate rows (K × H).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from recurrl.recurrent.backends.triton.kernels import backward_kernel, forward_kernel
from recurrl.recurrent.backends.triton.table import configuration


@torch.library.custom_op("recurrl::recurrent_forward", mutates_args=())
def recurrent_forward(
    x_gates_PG: Tensor,
    w_hh: Tensor,
    b_hh: Tensor | None,
    starts_P: Tensor,
    stored_PH: list[Tensor],
    lane_begin_N: Tensor,
    lane_length_N: Tensor,
    precision: str,
) -> list[Tensor]:
    """Each state ``[P, H]`` after every step (one of a GRU, two of an LSTM), then what the backward pass needs.

    Args:
        x_gates_PG: the input's projection with both biases; the third gate of a GRU has its own only.
        w_hh: ``[G, H]``.
        b_hh: ``[G]``, read for a GRU's third gate.
        starts_P: non-zero where the stored state enters.
        stored_PH: each state where ``starts`` is set; elsewhere not read. The strides are common.
        lane_begin_N: first step of each lane (int64); each must be a start.
        lane_length_N: steps of each lane (int32); the lanes hold every step once.
        precision: ``ieee``, ``tf32``, ``tf32x3``, ``bf16``, or ``bf16 emulated`` for triton's interpreter, whose
            products of bf16 are wrong.
    """
    hidden = w_hh.shape[1]
    states = [x_gates_PG.new_empty(x_gates_PG.shape[0], hidden) for _ in stored_PH]
    saved = x_gates_PG.new_empty(x_gates_PG.shape[0], 4 * hidden)
    chosen = configuration(hidden, precision)
    forward_kernel[_programs(lane_begin_N, chosen.lanes)](
        x_gates_PG,
        w_hh,
        w_hh if b_hh is None else b_hh,
        starts_P,
        stored_PH[0],
        stored_PH[-1],
        states[0],
        states[-1],
        saved,
        lane_begin_N,
        lane_length_N,
        lane_begin_N.shape[0],
        stored_PH[0].stride(0),
        H=hidden,
        HP=tile_size(hidden),
        BM=chosen.lanes,
        LSTM=len(stored_PH) == 2,
        HAS_BIAS=b_hh is not None,
        PRECISION=precision,
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )
    return [*states, saved]


@recurrent_forward.register_fake
def _(
    x_gates_PG: Tensor,
    w_hh: Tensor,
    b_hh: Tensor | None,
    starts_P: Tensor,
    stored_PH: list[Tensor],
    lane_begin_N: Tensor,
    lane_length_N: Tensor,
    precision: str,
) -> list[Tensor]:
    steps, hidden = x_gates_PG.shape[0], w_hh.shape[1]
    return [
        *(x_gates_PG.new_empty(steps, hidden) for _ in stored_PH),
        x_gates_PG.new_empty(steps, 4 * hidden),
    ]


@torch.library.custom_op("recurrl::recurrent_backward", mutates_args=())
def recurrent_backward(
    grads_PH: list[Tensor],
    w_hh: Tensor,
    starts_P: Tensor,
    stored_PH: list[Tensor],
    states_PH: list[Tensor],
    saved_P4H: Tensor,
    lane_begin_N: Tensor,
    lane_length_N: Tensor,
    wants_stored: bool,
    precision: str,
) -> list[Tensor]:
    """The gradients of :func:`recurrent_forward`'s inputs, or what they are products of.

    Returns:
        ``[P, 4·H]``, the gradients of the projections; ``[P, H]``, the first state that entered each step;
        ``[programs, H]``, parts of the gradient of a GRU's third recurrent bias (empty for an LSTM); and, if wanted,
        ``[P, H]``, the gradients of the stored states (else empty).
    """
    hidden = w_hh.shape[1]
    chosen = configuration(hidden, precision)
    grid = _programs(lane_begin_N, chosen.lanes)
    out = _backward_outputs(w_hh, states_PH, saved_P4H, grid[0], wants_stored)
    backward_kernel[grid](
        grads_PH[0],
        grads_PH[-1],
        w_hh.unflatten(0, (-1, hidden)).transpose(1, 2).contiguous(),
        starts_P,
        stored_PH[0],
        stored_PH[-1],
        states_PH[0],
        states_PH[-1],
        saved_P4H,
        out[0],
        out[1],
        out[2],
        out[3],
        out[-1],
        lane_begin_N,
        lane_length_N,
        lane_begin_N.shape[0],
        stored_PH[0].stride(0),
        H=hidden,
        HP=tile_size(hidden),
        BM=chosen.lanes,
        LSTM=len(stored_PH) == 2,
        WANTS_STORED=wants_stored,
        PRECISION=precision,
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )
    return out


@recurrent_backward.register_fake
def _(
    grads_PH: list[Tensor],
    w_hh: Tensor,
    starts_P: Tensor,
    stored_PH: list[Tensor],
    states_PH: list[Tensor],
    saved_P4H: Tensor,
    lane_begin_N: Tensor,
    lane_length_N: Tensor,
    wants_stored: bool,
    precision: str,
) -> list[Tensor]:
    programs = _programs(lane_begin_N, configuration(w_hh.shape[1], precision).lanes)[0]
    return _backward_outputs(w_hh, states_PH, saved_P4H, programs, wants_stored)


def _backward_outputs(
    w_hh: Tensor, states_PH: list[Tensor], saved_P4H: Tensor, programs: int, wants_stored: bool
) -> list[Tensor]:
    hidden = w_hh.shape[1]
    lstm = len(states_PH) == 2
    return [
        torch.empty_like(saved_P4H),
        torch.empty_like(states_PH[0]),
        w_hh.new_empty(0 if lstm else programs, hidden),
        *(state.new_empty(state.shape[0] if wants_stored else 0, hidden) for state in states_PH),
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    _, w_hh, b_hh, starts_P, stored_PH, lane_begin_N, lane_length_N, ctx.precision = inputs
    ctx.states, ctx.has_bias = len(stored_PH), b_hh is not None
    ctx.save_for_backward(w_hh, starts_P, lane_begin_N, lane_length_N, *stored_PH, *output)


def _backward(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "backend=triton has a hand-written first derivative and no second one (create_graph=True was asked for). "
            "Choose backend=reference, which autograd differentiates as often as needed."
        )
    w_hh, starts_P, lane_begin_N, lane_length_N, *rest = ctx.saved_tensors
    stored_PH, states_PH, saved_P4H = rest[: ctx.states], rest[ctx.states : -1], rest[-1]
    wants_stored = any(stored.requires_grad for stored in stored_PH)
    grad_states = [grad.contiguous() for grad in grads[: ctx.states]]
    grad_P4H, entered_PH, bias_parts, *grad_stored = recurrent_backward(
        grad_states,
        w_hh,
        starts_P,
        stored_PH,
        states_PH,
        saved_P4H,
        lane_begin_N,
        lane_length_N,
        wants_stored,
        ctx.precision,
    )
    hidden = w_hh.shape[1]
    grad_b_hh = None
    if ctx.states == 2:
        grad_x_gates = grad_P4H
        grad_w_hh = grad_P4H.t() @ entered_PH
    else:
        # The third gate's projections have a gradient each: the input's is the third, the recurrent one's the last.
        grad_x_gates = grad_P4H[:, : 3 * hidden]
        grad_w_hh = torch.cat((grad_P4H[:, : 2 * hidden].t() @ entered_PH, grad_P4H[:, 3 * hidden :].t() @ entered_PH))
        if ctx.has_bias:
            third = bias_parts.sum(0)
            grad_b_hh = torch.cat((third.new_zeros(2 * hidden), third))
    grads_of_stored = grad_stored if wants_stored else [None] * ctx.states
    return grad_x_gates, grad_w_hh, grad_b_hh, None, grads_of_stored, None, None, None


recurrent_forward.register_autograd(_backward, setup_context=_setup_context)


def tile_size(hidden: int) -> int:
    """The hidden size rounded up to a power of two, at least 16: the least that a product takes."""
    return max(16, triton.next_power_of_2(hidden))


def _programs(lane_begin_N: Tensor, lanes: int) -> tuple[int]:
    return ((lane_begin_N.shape[0] + lanes - 1) // lanes,)
