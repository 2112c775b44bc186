"""The launches of one layer's recurrence, forwards and backwards, in the order in which they depend on each other.

Shape legend: P steps of all rows, N lanes, S steps of the longest lane, H hidden size, K gates, G gate rows (K × H),
W steps of a window of all lanes, X states.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from recurrl.recurrent.backends.triton import launches, table
from recurrl.recurrent.backends.triton.launches import Launch


class Window(NamedTuple):
    """Some steps of all lanes that have them."""

    first: int
    last: int
    """Not included."""
    slots: Slots | None
    """None for all steps, in the order of the rows."""


class Slots(NamedTuple):
    """The order of a window's steps: step after step, and in each the lanes that have it."""

    rows_W: Tensor
    """The row of each slot."""
    first_S: Tensor
    """How many steps of all lanes come before each step, of all windows."""


class StepGradients(NamedTuple):
    """What the backward kernels leave of a window: W is its steps, or P."""

    gates_W4H: Tensor
    """Of the four projections."""
    entered_WH: Tensor
    """The state that entered each step."""
    bias_4H: Tensor


@dataclass(frozen=True)
class Recurrence:
    """Of one layer over its lanes. Arguments as those of :func:`ops.recurrent_forward`."""

    w_hh: Tensor
    bias_4H: Tensor | None
    starts_P: Tensor
    stored_PH: list[Tensor]
    lane_begin_N: Tensor
    lane_length_N: Tensor
    running_S: list[int]
    precision: str

    @property
    def cell(self) -> str:
        """``gru`` or ``lstm``."""
        return table.CELLS[len(self.stored_PH) - 1]

    @property
    def hidden(self) -> int:
        """The hidden size H."""
        return self.w_hh.shape[1]

    @cached_property
    def chosen(self) -> table.Configuration:
        """What the table says of it."""
        return table.configuration(self.cell, self.hidden, self._format, self._architecture, len(self.lane_begin_N))

    @property
    def _architecture(self) -> int:
        device = self.w_hh.device
        # Without a GPU, for triton's interpreter, one that has large tables.
        found = table.architecture(torch.cuda.get_device_capability(device)) if device.type == "cuda" else 90
        assert found is not None, "supports() refuses older GPUs"
        return found

    @property
    def _format(self) -> str:
        return self.precision.removesuffix(" emulated")

    @cached_property
    def lanes_of_S(self) -> list[int]:
        """For each step, how many lanes have it."""
        if len(self.running_S) > 1:
            return self.running_S
        return self.running_S * (len(self.starts_P) // self.running_S[0])

    @cached_property
    def slot_of_S(self) -> list[int]:
        """How many steps of all lanes come before each step."""
        return [0, *accumulate(self.lanes_of_S)]

    @cached_property
    def factors(self) -> Tensor:
        """The recurrent weights in the format of their products."""
        return rounded(self.w_hh, self.precision).contiguous()

    @property
    def _bias(self) -> Tensor:
        # Not read if there is none, but a pointer there must be.
        return self.w_hh if self.bias_4H is None else self.bias_4H

    @property
    def stored(self) -> tuple[Tensor, Tensor, Tensor]:
        """The marks of the starts, and the states stored there: h, and c or once more h."""
        return self.starts_P, self.stored_PH[0], self.stored_PH[-1]

    @property
    def stride(self) -> int:
        """Elements between two steps' stored states."""
        return self.stored_PH[0].stride(0)

    def forward(self, x_gates_PG: Tensor, states_PH: list[Tensor], gates_P4H: Tensor) -> None:
        """Writes the states after every step, and the gates unless that memory is empty."""
        launch = launches.forward(
            self.chosen,
            self.cell,
            self.hidden,
            self.precision,
            has_bias=self.bias_4H is not None,
            keep=len(gates_P4H) > 0,
        )
        shared = (x_gates_PG, self.factors, self._bias, *self.stored, states_PH[0], states_PH[-1], gates_P4H)
        if self.chosen.resident:
            lanes = len(self.lane_begin_N)
            launch.run((lanes, 1), *shared, self.lane_begin_N, self.lane_length_N, lanes, self.stride)
            return
        for t, lanes in enumerate(self.lanes_of_S):
            launch.run((lanes, self.hidden), *shared, self.lane_begin_N, t, lanes, self.stride)

    def windows(self, length: int) -> list[Window]:
        """The windows of ``length`` steps, the last one first; 0 is all steps in one."""
        steps = len(self.lanes_of_S)
        if length == 0 or length >= steps:
            return [Window(0, steps, None)]
        rows_P, first_S = self._slots()
        found = []
        for first in reversed(range(0, steps, length)):
            last = min(first + length, steps)
            rows_W = rows_P[self.slot_of_S[first] : self.slot_of_S[last]]
            found.append(Window(first, last, Slots(rows_W, first_S)))
        return found

    def _slots(self) -> Slots:
        """Those of all steps, without a look at the data from the host."""
        device = self.lane_begin_N.device
        step_S = torch.arange(len(self.lanes_of_S), device=device)
        ended_S = torch.searchsorted(self.lane_length_N.long().flip(0), step_S, right=True)
        lanes_S = len(self.lane_begin_N) - ended_S
        first_S = lanes_S.cumsum(0) - lanes_S
        step_P = torch.repeat_interleave(step_S, lanes_S, output_size=len(self.starts_P))
        lane_P = torch.arange(len(self.starts_P), device=device) - first_S[step_P]
        return Slots(self.lane_begin_N[lane_P] + step_P, first_S)

    def gates_again(self, x_gates_WG: Tensor, states_PH: list[Tensor], window: Window) -> Tensor:
        """The gates of a window from the states that are known: of all its steps at once, by the kernel of one step."""
        steps = len(x_gates_WG)
        rows_W = window.slots.rows_W if window.slots else torch.arange(steps, device=x_gates_WG.device)
        gates_W4H = x_gates_WG.new_empty(steps, 4 * self.hidden)
        launch = launches.forward(
            table.step_configuration(self.cell, self.hidden, self._format, self._architecture, steps),
            self.cell,
            self.hidden,
            self.precision,
            has_bias=self.bias_4H is not None,
            keep=True,
            recompute=True,
        )
        launch.run(
            (steps, self.hidden),
            *(x_gates_WG, self.factors, self._bias, *self.stored, states_PH[0], states_PH[-1], gates_W4H),
            *(rows_W, 0, steps, self.stride),
        )
        return gates_W4H


class BackwardSweep:
    """The backward launches of a recurrence, a window of steps after the other, the last one first.

    Args:
        recurrence: of the layer.
        grads_PH: of each state after every step.
        states_PH: each state after every step.
        grad_stored_PH: where the gradients of the stored states go; empty memory if they are not wanted.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        grads_PH: list[Tensor],
        states_PH: list[Tensor],
        grad_stored_PH: list[Tensor],
    ) -> None:
        self._of = recurrence
        self._grads_PH, self._states_PH, self._grad_stored_PH = grads_PH, states_PH, grad_stored_PH
        self._factors_t = recurrence.factors.unflatten(0, (-1, recurrence.hidden)).transpose(1, 2).contiguous()
        # What a launch carries to the next one. Two of each, because a thread may write before another has read.
        shape = (len(states_PH), len(recurrence.lane_begin_N), recurrence.hidden)
        self._carried_2XNH = [recurrence.w_hh.new_empty(shape) for _ in range(2)]

    def run(self, window: Window, gates_W4H: Tensor) -> StepGradients:
        """The gradients of a window. ``gates`` are in its order."""
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
            of.lane_begin_N if window.slots is None else window.slots.first_S,
            *(of.lane_begin_N, of.lane_length_N, window.first, window.last, lanes, of.stride),
        )
        return bias_parts

    def _stepwise(self, window: Window, of_window: tuple[Tensor, ...]) -> Tensor:
        of = self._of
        lanes_of_S = [*of.lanes_of_S, 0]
        first_slot = of.slot_of_S[window.first]
        parts = [self._launch(window).blocks(lanes) for lanes in lanes_of_S[window.first : window.last]]
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
        of = self._of
        return launches.backward(
            of.chosen,
            of.cell,
            of.hidden,
            of.precision,
            wants_stored=len(self._grad_stored_PH[0]) > 0,
            window=window.slots is not None,
            after=after,
            here=here,
        )

    def _arguments(self, of_window: tuple[Tensor, ...], bias_parts: Tensor) -> tuple[Tensor, ...]:
        """Those that both backward kernels begin with. Each call exchanges what was carried and what will be."""
        carried_XNH, carry_XNH = self._carried_2XNH
        self._carried_2XNH.reverse()
        return (
            *(self._grads_PH[0], self._grads_PH[-1], self._factors_t, *self._of.stored),
            *(self._states_PH[0], self._states_PH[-1], *of_window, bias_parts),
            *(self._grad_stored_PH[0], self._grad_stored_PH[-1]),
            *(carried_XNH[0], carried_XNH[-1], carry_XNH[0], carry_XNH[-1]),
        )


def rounded(weight: Tensor, precision: str) -> Tensor:
    """A factor of a product in the format of its precision, rounded to the nearest, as the kernels round the others."""
    if precision == "bf16":
        return weight.bfloat16()
    if precision == "bf16 emulated":
        return weight.bfloat16().float()
    if precision == "tf32":
        # Of 23 bits of mantissa tf32 keeps 10: half of what the last one is worth is added before the rest is cut off.
        bits = (weight.view(torch.int32) + 0x1000) & -0x2000
        return torch.where(weight.isnan(), weight, bits.view(torch.float32))
    return weight
