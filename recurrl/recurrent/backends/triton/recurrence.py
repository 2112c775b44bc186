"""The launches of one layer's recurrence, forwards and backwards, in dependency order.

Shape legend: P steps of all rows, N lanes, S steps of the longest lane, H hidden size, K gates, G gate rows (K × H),
W steps of a window of all lanes, X states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from recurrl.recurrent.backends.triton import launches, table
from recurrl.recurrent.backends.triton.launches import Launch, Layer


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


@dataclass(frozen=True)
class Recurrence:
    """The recurrence of one layer over its lanes. Fields as in :func:`ops.recurrent_forward`."""

    w_hh: Tensor
    stored_PH: list[Tensor]
    bias_4H: Tensor | None
    starts_P: Tensor
    lane_begin_N: Tensor
    lane_length_N: Tensor
    running_S: list[int]
    precision: str

    @property
    def hidden(self) -> int:
        """The hidden size H."""
        return self.w_hh.shape[1]

    @property
    def layer(self) -> Layer:
        """As the launches take it."""
        return table.CELLS[len(self.stored_PH) - 1], self.hidden, self.precision

    @cached_property
    def chosen(self) -> table.Configuration:
        """The table's configuration for it."""
        return self._configuration(table.configuration, len(self.lane_begin_N))

    def _configuration(self, choose: Callable[..., table.Configuration], lanes: int) -> table.Configuration:
        cell, hidden, precision = self.layer
        device = self.w_hh.device
        # Without a GPU (triton's interpreter): one with large tables.
        found = table.architecture(torch.cuda.get_device_capability(device)) if device.type == "cuda" else 90
        assert found is not None, "supports() refuses older GPUs"
        return choose(cell, hidden, precision.removesuffix(" emulated"), found, lanes)

    @cached_property
    def lanes_of_S(self) -> list[int]:
        """Number of lanes running at each step."""
        if len(self.running_S) > 1:
            return self.running_S
        return self.running_S * (len(self.starts_P) // self.running_S[0])

    @cached_property
    def slot_of_S(self) -> list[int]:
        """First slot of each step."""
        return [0, *accumulate(self.lanes_of_S)]

    @cached_property
    def factors(self) -> Tensor:
        """The recurrent weights, rounded to the matmul format."""
        return rounded(self.w_hh, self.precision).contiguous()

    @property
    def _bias(self) -> Tensor:
        # Without a bias it is not read, but the kernel needs a pointer.
        return self.w_hh if self.bias_4H is None else self.bias_4H

    @property
    def stored(self) -> tuple[Tensor, Tensor, Tensor]:
        """The start flags and the stored states: h, and c (or h again)."""
        return self.starts_P, self.stored_PH[0], self.stored_PH[-1]

    @property
    def stride(self) -> int:
        """Elements between the stored states of consecutive steps."""
        return self.stored_PH[0].stride(0)

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
        device = self.lane_begin_N.device
        step_S = torch.arange(len(self.lanes_of_S), device=device)
        ended_S = torch.searchsorted(self.lane_length_N.long().flip(0), step_S, right=True)
        lanes_S = len(self.lane_begin_N) - ended_S
        first_S = lanes_S.cumsum(0) - lanes_S
        step_P = torch.repeat_interleave(step_S, lanes_S, output_size=len(self.starts_P))
        lane_P = torch.arange(len(self.starts_P), device=device) - first_S[step_P]
        return self.lane_begin_N[lane_P] + step_P, first_S

    def recompute_gates(self, x_gates_WG: Tensor, states_PH: list[Tensor], window: Window) -> Tensor:
        """Recomputes a window's gates from the known states, all steps at once, with the step kernel."""
        steps = len(x_gates_WG)
        rows_W = torch.arange(steps, device=x_gates_WG.device) if window.rows_W is None else window.rows_W
        gates_W4H = x_gates_WG.new_empty(steps, 4 * self.hidden)
        chosen, has_bias = self._configuration(table.step_configuration, steps), self.bias_4H is not None
        launch = launches.forward(chosen, self.layer, has_bias=has_bias, keep=True, recompute=True)
        launch.run(
            (steps, self.hidden),
            *(x_gates_WG, self.factors, self._bias, *self.stored, states_PH[0], states_PH[-1], gates_W4H),
            *(rows_W, 0, steps, self.stride),
        )
        return gates_W4H


class BackwardSweep:
    """The backward launches of a recurrence, window by window, last one first.

    Args:
        recurrence: the layer's.
        grads_PH: gradients of each state after every step.
        states_PH: each state after every step.
        grad_stored_PH: receives the gradients of the stored states; empty if not wanted.
    """

    def __init__(
        self, recurrence: Recurrence, grads_PH: list[Tensor], states_PH: list[Tensor], grad_stored_PH: list[Tensor]
    ) -> None:
        self._of = recurrence
        self._grads_PH, self._states_PH, self._grad_stored_PH = grads_PH, states_PH, grad_stored_PH
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
            if not here and window.first == 0 and not len(self._grad_stored_PH[0]):
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
        of, wants_stored, in_window = self._of, len(self._grad_stored_PH[0]) > 0, window.rows_W is not None
        return launches.backward(
            of.chosen, of.layer, wants_stored=wants_stored, window=in_window, after=after, here=here
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
