"""Both passes of one layer: kernels compute the recurrence, torch the matmuls over all steps.

Launches follow one another in dependency order.

Shape legend: B rows, T steps, P steps of all rows, N lanes, S steps of the longest lane, I input size, H hidden size,
G gate rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.backends.triton import launches, tiles
from recurrl.recurrent.backends.triton.launches import Launch
from recurrl.recurrent.operators import Layer
from recurrl.recurrent.segments import Segments


class StepGradients(NamedTuple):
    """Results of the backward kernels."""

    gates_P4H: Tensor
    """Gradients of the four projections."""
    entered_PH: Tensor
    """The state before each step."""
    bias_4H: Tensor


def forward(layer: Layer, x_BTI: Tensor, ends: list[Tensor], states: list[Tensor], gates_PA: Tensor) -> None:
    """See :meth:`~recurrl.recurrent.operators.Loop.forward`."""
    Recurrence(layer).forward(x_BTI.flatten(0, 1), _flat(states), gates_PA)
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
    grad_x, grad_w_ih, grad_w_hh, grad_b_ih, grad_b_hh, *grad_stored = grads
    grads_PH = _flat([torch.zeros_like(state) for state in states])
    if incoming[0] is not None:
        grads_PH[0] += incoming[0].flatten(0, 1)
    for total_PH, grad in zip(grads_PH, incoming[1:], strict=True):
        if grad is not None:
            total_PH += layer.segments.only_ends(grad).flatten(0, 1)
    sweep = BackwardSweep(recurrence, grads_PH, _flat(states), _flat(grad_stored) if len(grad_stored[0]) else [])
    x_PI, w_ih = x_BTI.flatten(0, 1), layer.weights[0]
    found = sweep.run(gates_PA)
    grad_x_gates_PG = found.gates_P4H[:, : len(w_ih)]
    if len(grad_x):
        torch.mm(grad_x_gates_PG, w_ih, out=grad_x.flatten(0, 1))
    torch.mm(grad_x_gates_PG.t(), x_PI, out=grad_w_ih)
    torch.mm(_recurrent_columns(layer, found.gates_P4H).t(), found.entered_PH, out=grad_w_hh)
    if len(grad_b_ih):
        grad_b_ih.copy_(found.bias_4H[: len(grad_b_ih)])
        grad_b_hh.copy_(_recurrent_columns(layer, found.bias_4H))


def _flat(values: Sequence[Tensor]) -> list[Tensor]:
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
        self.w_ih, w_hh, b_ih, b_hh = layer.weights
        self.w_hh, self.bias_4H = w_hh, None
        self.hidden = w_hh.shape[1]
        self.layer = (layer.cell.name, self.hidden, layer.precision)
        if b_ih is not None:
            together = len(b_ih) - layer.split
            self.bias_4H = torch.cat((b_ih[:together] + b_hh[:together], b_ih[together:], b_hh[together:]))
        self.lane_begin_N, self.lane_length_N, self.lanes_of_S = _lanes(layer.segments)
        stored_PH = _with_common_stride(_flat(layer.stored))
        self.stored = (layer.segments.starts_BT.flatten().to(torch.int8), stored_PH[0], stored_PH[-1])
        """The start flags and the stored states: h, and c (or h again)."""
        self.stride = stored_PH[0].stride(0)
        self.factors = rounded(w_hh, layer.precision).contiguous()
        """The recurrent weights, rounded to the matmul format."""
        # Triton's interpreter, which has no GPU, takes the tiles of a large one.
        on_gpu = w_hh.device.type == "cuda"
        architecture = tiles.architecture(torch.cuda.get_device_capability(w_hh.device)) if on_gpu else 90
        assert architecture is not None, "supports() rejects older GPUs"
        precision = layer.precision.removesuffix(" emulated")
        lanes = len(self.lane_begin_N)
        self.chosen = tiles.configuration(layer.cell.name, self.hidden, precision, architecture, lanes)

    def forward(self, x_PI: Tensor, states_PH: list[Tensor], gates_P4H: Tensor) -> None:
        """Writes the states after every step, and the gates unless ``gates_P4H`` is empty."""
        has_bias, keep = self.bias_4H is not None, len(gates_P4H) > 0
        launch = launches.forward(self.chosen, self.layer, has_bias=has_bias, keep=keep)
        # All biases except that of a GRU's recurrent third gate.
        x_gates_PG = functional.linear(
            x_PI, self.w_ih, None if self.bias_4H is None else self.bias_4H[: len(self.w_ih)]
        )
        # Without a bias it is not read, but the kernel needs a pointer.
        bias = self.w_hh if self.bias_4H is None else self.bias_4H
        shared = (x_gates_PG, self.factors, bias, *self.stored, states_PH[0], states_PH[-1], gates_P4H)
        if self.chosen.resident:
            lanes = len(self.lane_begin_N)
            launch.run((lanes, 1), *shared, self.lane_begin_N, self.lane_length_N, lanes, self.stride)
            return
        for t, lanes in enumerate(self.lanes_of_S):
            launch.run((lanes, self.hidden), *shared, self.lane_begin_N, t, lanes, self.stride)


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
    """The backward launches of a recurrence.

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
        self._wants_stored = len(grad_stored_PH) > 0
        # Without them nothing is written, but the kernels need pointers.
        self._grad_stored_PH = grad_stored_PH or grads_PH
        factors_t = recurrence.factors.unflatten(0, (-1, recurrence.hidden)).transpose(1, 2).contiguous()
        self._read = (grads_PH[0], grads_PH[-1], factors_t, *recurrence.stored, states_PH[0], states_PH[-1])

    def run(self, gates_P4H: Tensor) -> StepGradients:
        """Computes the gradients from the gates."""
        entered_PH = gates_P4H.new_empty(len(gates_P4H), self._of.hidden)
        grad_gates_P4H = torch.empty_like(gates_P4H)
        launch = self._resident if self._of.chosen.resident else self._stepwise
        bias_4H = launch((*self._read, gates_P4H, grad_gates_P4H, entered_PH)).sum(0)
        return StepGradients(grad_gates_P4H, entered_PH, bias_4H)

    def _resident(self, leading: tuple[Tensor, ...]) -> Tensor:
        of, lanes, launch = self._of, len(self._of.lane_begin_N), self._launch()
        bias_parts = of.w_hh.new_empty(launch.blocks(lanes), 4 * of.hidden)
        grad_stored = (self._grad_stored_PH[0], self._grad_stored_PH[-1])
        of_lanes = (of.lane_begin_N, of.lane_length_N, lanes, of.stride)
        launch.run((lanes, 1), *leading, bias_parts, *grad_stored, *of_lanes)
        return bias_parts

    def _stepwise(self, leading: tuple[Tensor, ...]) -> Tensor:
        of = self._of
        steps, lanes_of_S = len(of.lanes_of_S), [*of.lanes_of_S, 0]
        # Carried between launches. Double-buffered, because a thread may write before another has read.
        shape = (2, len(of.stored) - 1, len(of.lane_begin_N), of.hidden)
        carried, carry = of.w_hh.new_empty(shape)
        parts = list(map(self._launch().blocks, of.lanes_of_S))
        bias_parts = of.w_hh.new_empty(sum(parts), 4 * of.hidden)
        part = len(bias_parts)
        # The last launch, before step 0, only computes the gradients of the stored states there.
        for t in reversed(range(-1 if self._wants_stored else 0, steps)):
            lanes = lanes_of_S[max(t, 0)]
            part -= parts[t] if t >= 0 else 0
            self._launch(after=t + 1 < steps, here=t >= 0).run(
                (lanes, of.hidden),
                *(*leading, bias_parts, self._grad_stored_PH[0], self._grad_stored_PH[-1], *carried, *carry),
                *(of.lane_begin_N, t, lanes, lanes_of_S[t + 1], part, of.stride),
            )
            carried, carry = carry, carried
        return bias_parts

    def _launch(self, after: bool = True, here: bool = True) -> Launch:
        of = self._of
        return launches.backward(of.chosen, of.layer, wants_stored=self._wants_stored, after=after, here=here)


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
