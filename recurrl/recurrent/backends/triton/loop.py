"""Both passes of one layer: kernels compute the recurrence, torch the matmuls over all steps.

Launches follow one another in dependency order. Gates that were not kept are recomputed: all at once, or in windows of
``chunk_len`` steps from the last to the first, so that scratch memory is bounded by a window.

Shape legend: B rows, T steps, P steps of all rows, N lanes, S steps of the longest lane, I input size, H hidden size,
G gate rows, W steps of a window of all lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.backends.triton import launches, tiles
from recurrl.recurrent.backends.triton.launches import Launch
from recurrl.recurrent.operators import Layer
from recurrl.recurrent.segments import Segments


class Window(NamedTuple):
    """A range of steps, over all lanes that reach them."""

    first: int
    last: int
    """Exclusive."""
    rows_W: Tensor | None = None
    """The row of each of its slots: step by step, and within each step the running lanes. None for all steps, in row
    order.
    """
    first_S: Tensor | None = None
    """First slot of each step, over all windows."""


class StepGradients(NamedTuple):
    """Results of the backward kernels for a window (W its steps, or P)."""

    gates_W4H: Tensor
    """Gradients of the four projections."""
    entered_WH: Tensor
    """The state before each step."""
    bias_4H: Tensor


def forward(layer: Layer, x_BTI: Tensor, ends: list[Tensor], states: list[Tensor], gates_PA: Tensor) -> None:
    """See :meth:`~recurrl.recurrent.operators.Loop.forward`."""
    recurrence = Recurrence(layer)
    recurrence.forward(recurrence.input_gates(x_BTI.flatten(0, 1)), _flat(states), gates_PA)
    for end, state in zip(ends, states, strict=True):
        end.copy_(layer.segments.only_ends(state))


def backward(
    layer: Layer,
    x_BTI: Tensor,
    states: list[Tensor],
    gates_PA: Tensor,
    incoming: list[Tensor | None],
    grads: list[Tensor],
) -> None:
    """See :meth:`~recurrl.recurrent.operators.Loop.backward`."""
    recurrence = Recurrence(layer)
    grad_x, grad_w_ih, grad_w_hh, grad_b_ih, grad_b_hh, _, *grad_stored = grads
    grads_PH = _flat([torch.zeros_like(state) for state in states])
    if incoming[0] is not None:
        grads_PH[0] += incoming[0].flatten(0, 1)
    for total_PH, grad in zip(grads_PH, incoming[1:], strict=True):
        if grad is not None:
            total_PH += layer.segments.only_ends(grad).flatten(0, 1)
    sweep = BackwardSweep(recurrence, grads_PH, _flat(states), _flat(grad_stored) if len(grad_stored[0]) else [])
    x_PI, grad_bias_4H = x_BTI.flatten(0, 1), x_BTI.new_zeros(4 * recurrence.hidden)
    grad_w_ih.zero_()
    grad_w_hh.zero_()
    for window in recurrence.windows(layer.chunk_len):
        x_WI = x_PI if window.rows_W is None else x_PI.index_select(0, window.rows_W)
        gates_W4H = gates_PA
        if not len(gates_PA):
            gates_W4H = recurrence.recompute_gates(recurrence.input_gates(x_WI), _flat(states), window)
        found = sweep.run(window, gates_W4H)
        grad_x_gates_WG = found.gates_W4H[:, : len(grad_w_ih)]
        if len(grad_x):
            rows = slice(None) if window.rows_W is None else window.rows_W
            grad_x.flatten(0, 1)[rows] = grad_x_gates_WG @ layer.weights[0]
        grad_w_ih.addmm_(grad_x_gates_WG.t(), x_WI)
        of_state_WG = _recurrent_columns(layer, found.gates_W4H)
        grad_w_hh.addmm_(of_state_WG.t(), found.entered_WH)
        grad_bias_4H += found.bias_4H
    if len(grad_b_ih):
        grad_b_ih.copy_(grad_bias_4H[: len(grad_b_ih)])
        grad_b_hh.copy_(_recurrent_columns(layer, grad_bias_4H))


def _flat(values: list[Tensor]) -> list[Tensor]:
    return [value.flatten(0, 1) for value in values]


def _recurrent_columns(layer: Layer, four: Tensor) -> Tensor:
    """The gate rows that the recurrent projection produces, of four pre-activations ``[..., 4·H]``.

    A GRU's third gate keeps its two projections separate; the recurrent one comes last.
    """
    rows, split = len(layer.weights[1]), layer.split
    return torch.cat((four[..., : rows - split], four[..., four.shape[-1] - split :]), -1) if split else four


class Recurrence:
    """The recurrence of one layer over its lanes.

    A *lane* is a segment: sorted by length, they keep all lanes of a program busy while it runs. Finding segments reads
    the data, which a CUDA graph cannot do; while one is captured, a lane is a row.
    """

    def __init__(self, layer: Layer) -> None:
        _, w_hh, b_ih, b_hh, _ = layer.weights
        self.w_ih, self.w_hh, self.bias_4H = layer.weights[0], w_hh, None
        self.hidden = w_hh.shape[1]
        self.layer = (layer.cell.name, self.hidden, layer.precision)
        if b_ih is not None:
            together = len(b_ih) - layer.split
            self.bias_4H = torch.cat((b_ih[:together] + b_hh[:together], b_ih[together:], b_hh[together:]))
        self.lane_begin_N, self.lane_length_N, self.lanes_of_S = _lanes(layer.segments)
        self.slot_of_S = [0, *accumulate(self.lanes_of_S)]
        """First slot of each step."""
        stored_PH = _with_common_stride(_flat(layer.stored))
        self.stored = (layer.segments.starts_BT.flatten().to(torch.int8), stored_PH[0], stored_PH[-1])
        """The start flags and the stored states: h, and c (or h again)."""
        self.stride = stored_PH[0].stride(0)
        self.factors = rounded(w_hh, layer.precision).contiguous()
        """The recurrent weights, rounded to the matmul format."""
        self.chosen = self._configuration(tiles.configuration, len(self.lane_begin_N))

    def _configuration(self, choose: Callable[..., tiles.Configuration], lanes: int) -> tiles.Configuration:
        (cell, hidden, precision), device = self.layer, self.w_hh.device
        # Triton's interpreter, which has no GPU, takes the tiles of a large one.
        found = tiles.architecture(torch.cuda.get_device_capability(device)) if device.type == "cuda" else 90
        assert found is not None, "supports() rejects older GPUs"
        return choose(cell, hidden, precision.removesuffix(" emulated"), found, lanes)

    def input_gates(self, x_WI: Tensor) -> Tensor:
        """The input projection with all biases except that of a GRU's recurrent third gate."""
        return functional.linear(x_WI, self.w_ih, None if self.bias_4H is None else self.bias_4H[: len(self.w_ih)])

    @property
    def _bias(self) -> Tensor:
        # Without a bias it is not read, but the kernel needs a pointer.
        return self.w_hh if self.bias_4H is None else self.bias_4H

    def forward(self, x_gates_PG: Tensor, states_PH: list[Tensor], gates_P4H: Tensor) -> None:
        """Writes the states after every step, and the gates unless ``gates_P4H`` is empty."""
        has_bias, keep = self.bias_4H is not None, len(gates_P4H) > 0
        launch = launches.forward(self.chosen, self.layer, has_bias=has_bias, keep=keep)
        shared = (x_gates_PG, self.factors, self._bias, *self.stored, states_PH[0], states_PH[-1], gates_P4H)
        if self.chosen.resident:
            lanes = len(self.lane_begin_N)
            launch.run((lanes, 1), *shared, self.lane_begin_N, self.lane_length_N, lanes, self.stride)
            return
        for t, lanes in enumerate(self.lanes_of_S):
            launch.run((lanes, self.hidden), *shared, self.lane_begin_N, t, lanes, self.stride)

    def windows(self, length: int) -> list[Window]:
        """Windows of ``length`` steps, last one first; 0 for a single window."""
        steps = len(self.lanes_of_S)
        if length == 0 or length >= steps:
            return [Window(0, steps)]
        rows_P, first_S = self._slots()
        found = []
        for first in reversed(range(0, steps, length)):
            last = min(first + length, steps)
            found.append(Window(first, last, rows_P[self.slot_of_S[first] : self.slot_of_S[last]], first_S))
        return found

    def _slots(self) -> tuple[Tensor, Tensor]:
        """The row of each slot and the first slot of each step, computed without a host synchronisation."""
        device, steps = self.lane_begin_N.device, self.slot_of_S[-1]
        step_S = torch.arange(len(self.lanes_of_S), device=device)
        ended_S = torch.searchsorted(self.lane_length_N.long().flip(0), step_S, right=True)
        lanes_S = len(self.lane_begin_N) - ended_S
        first_S = lanes_S.cumsum(0) - lanes_S
        step_P = torch.repeat_interleave(step_S, lanes_S, output_size=steps)
        lane_P = torch.arange(steps, device=device) - first_S[step_P]
        return self.lane_begin_N[lane_P] + step_P, first_S

    def recompute_gates(self, x_gates_WG: Tensor, states_PH: list[Tensor], window: Window) -> Tensor:
        """Recomputes a window's gates from the known states, all steps at once, with the step kernel."""
        steps = len(x_gates_WG)
        rows_W = torch.arange(steps, device=x_gates_WG.device) if window.rows_W is None else window.rows_W
        gates_W4H = x_gates_WG.new_empty(steps, 4 * self.hidden)
        chosen, has_bias = self._configuration(tiles.step_configuration, steps), self.bias_4H is not None
        launch = launches.forward(chosen, self.layer, has_bias=has_bias, keep=True, recompute=True)
        launch.run(
            (steps, self.hidden),
            *(x_gates_WG, self.factors, self._bias, *self.stored, states_PH[0], states_PH[-1], gates_W4H),
            *(rows_W, 0, steps, self.stride),
        )
        return gates_W4H


def _lanes(segments: Segments) -> tuple[Tensor, Tensor, list[int]]:
    """Each lane's first step and length, longest lane first, and the number of lanes at each step."""
    starts_BT = segments.starts_BT
    if _is_capturing(starts_BT.device):
        rows, steps = starts_BT.shape
        begin_N = torch.arange(rows, device=starts_BT.device) * steps
        return begin_N, torch.full((rows,), steps, dtype=torch.int32, device=starts_BT.device), [rows] * steps
    packing = segments.packing
    return packing.starts_N, (packing.ends_N - packing.starts_N + 1).int(), packing.batch_sizes


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _with_common_stride(stored_PH: list[Tensor]) -> list[Tensor]:
    """The states with a common stride between steps; copies only if needed."""
    if {stored.stride() for stored in stored_PH} == {(stored_PH[0].stride(0), 1)}:
        return stored_PH
    return [stored.contiguous() for stored in stored_PH]


class BackwardSweep:
    """The backward launches of a recurrence, window by window, last one first.

    Args:
        recurrence: of the layer.
        grads_PH: gradients of each state after every step.
        states_PH: each state after every step.
        grad_stored_PH: receives the gradients of the stored states; no tensors if they are not wanted.
    """

    def __init__(
        self, recurrence: Recurrence, grads_PH: list[Tensor], states_PH: list[Tensor], grad_stored_PH: list[Tensor]
    ) -> None:
        self._of = recurrence
        self._grads_PH, self._states_PH = grads_PH, states_PH
        self._wants_stored = len(grad_stored_PH) > 0
        # Without them nothing is written, but the kernels need pointers.
        self._grad_stored_PH = grad_stored_PH or grads_PH
        self._factors_t = recurrence.factors.unflatten(0, (-1, recurrence.hidden)).transpose(1, 2).contiguous()
        # Carried between launches. Double-buffered, because a thread may write before another has read.
        shape = (len(states_PH), len(recurrence.lane_begin_N), recurrence.hidden)
        self._carried_2XNH = [recurrence.w_hh.new_empty(shape) for _ in range(2)]

    def run(self, window: Window, gates_W4H: Tensor) -> StepGradients:
        """Computes a window's gradients. ``gates`` are in its order."""
        entered_WH = gates_W4H.new_empty(len(gates_W4H), self._of.hidden)
        grad_gates_W4H = torch.empty_like(gates_W4H)
        launch = self._resident if self._of.chosen.resident else self._stepwise
        bias_4H = launch(window, (gates_W4H, grad_gates_W4H, entered_WH)).sum(0)
        return StepGradients(grad_gates_W4H, entered_WH, bias_4H)

    def _resident(self, window: Window, of_window: tuple[Tensor, ...]) -> Tensor:
        of = self._of
        lanes = of.lanes_of_S[window.first]
        launch = self._launch(window)
        bias_parts = of.w_hh.new_empty(launch.blocks(lanes), 4 * of.hidden)
        launch.run(
            (lanes, 1),
            *self._arguments(of_window, bias_parts),
            of.lane_begin_N if window.first_S is None else window.first_S,
            *(of.lane_begin_N, of.lane_length_N, window.first, window.last, lanes, of.stride),
        )
        return bias_parts

    def _stepwise(self, window: Window, of_window: tuple[Tensor, ...]) -> Tensor:
        of = self._of
        lanes_of_S = [*of.lanes_of_S, 0]
        first_slot = of.slot_of_S[window.first]
        parts = list(map(self._launch(window).blocks, lanes_of_S[window.first : window.last]))
        bias_parts = of.w_hh.new_empty(sum(parts), 4 * of.hidden)
        part = len(bias_parts)
        for t in reversed(range(window.first - 1, window.last)):
            after, here = t + 1 < window.last, t >= window.first
            if not here and window.first == 0 and not self._wants_stored:
                break
            lanes, lanes_after = lanes_of_S[max(t, 0)], lanes_of_S[t + 1]
            part -= parts[t - window.first] if here else 0
            slots = (of.slot_of_S[max(t, 0)] - first_slot, of.slot_of_S[t + 1] - first_slot)
            self._launch(window, after=after, here=here).run(
                (lanes, of.hidden),
                *self._arguments(of_window, bias_parts),
                *(of.lane_begin_N, t, lanes, lanes_after, *slots, part, of.stride),
            )
        return bias_parts

    def _launch(self, window: Window, after: bool = True, here: bool = True) -> Launch:
        of, in_window = self._of, window.rows_W is not None
        return launches.backward(
            of.chosen, of.layer, wants_stored=self._wants_stored, window=in_window, after=after, here=here
        )

    def _arguments(self, of_window: tuple[Tensor, ...], bias_parts: Tensor) -> tuple[Tensor, ...]:
        """The leading arguments of both backward kernels. Each call swaps the carry buffers."""
        carried_XNH, carry_XNH = self._carried_2XNH
        self._carried_2XNH.reverse()
        return (
            *(self._grads_PH[0], self._grads_PH[-1], self._factors_t, *self._of.stored),
            *(self._states_PH[0], self._states_PH[-1], *of_window, bias_parts),
            *(self._grad_stored_PH[0], self._grad_stored_PH[-1]),
            *(carried_XNH[0], carried_XNH[-1], carry_XNH[0], carry_XNH[-1]),
        )


def rounded(weight: Tensor, precision: str) -> Tensor:
    """Rounds a matmul operand to the nearest value of its format, as the kernels round the others."""
    if precision == "bf16":
        return weight.bfloat16()
    if precision == "bf16 emulated":
        return weight.bfloat16().float()
    if precision == "tf32":
        # tf32 keeps 10 of 23 bits of mantissa: add half a unit of the last kept bit, then truncate.
        bits = (weight.view(torch.int32) + 0x1000) & -0x2000
        return torch.where(weight.isnan(), weight, bits.view(torch.float32))
    return weight
