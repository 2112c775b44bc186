"""A stack of recurrent layers over a batch of rows with resets, independent of cell and backend.

Shape legend: B rows, T steps, I input size, H hidden size, O output size of a layer in one direction (H, or that of the
projection), L layers, D directions, X size of a state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.backends import LayerWeights, Options, load_backend, step
from recurrl.recurrent.cells import Cell
from recurrl.recurrent.segments import Segments

Step = Callable[[Tensor, Tensor | None, tuple[Tensor, ...]], tuple[Tensor, tuple[Tensor, ...]]]
"""``(x_BI, is_init_B, states_BLX) -> (output, new states)``."""


class Parameters(Protocol):
    """The parameters of a stack of layers, named and shaped as in ``nn.GRU`` and ``nn.LSTM``."""

    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    dropout: float
    bidirectional: bool
    proj_size: int
    training: bool

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields each parameter with its name."""
        ...


class Stack(nn.Module):
    """Parameters of stacked layers of a cell that torch has no module for, initialised like torch's.

    It has no forward: :func:`run_sequence` and :func:`make_step` read its parameters.
    """

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.dropout, self.bidirectional = bias, dropout, bidirectional
        self.batch_first, self.proj_size = True, 0
        rows = cell.GATES * hidden_size
        directions = 2 if bidirectional else 1
        for layer in range(num_layers):
            for direction in range(directions):
                inputs = input_size if layer == 0 else directions * hidden_size
                for name, shape in (("ih", (rows, inputs)), ("hh", (rows, hidden_size))):
                    if name == "hh" and not cell.RECURRENT:
                        continue
                    suffix = _suffix(layer, direction)
                    self._add(f"weight_{name}{suffix}", shape, device)
                    if bias:
                        self._add(f"bias_{name}{suffix}", (rows,), device)

    def _add(self, name: str, shape: tuple[int, ...], device: torch.device | str | None) -> None:
        parameter = nn.Parameter(torch.empty(shape, device=device))
        nn.init.uniform_(parameter, -1 / math.sqrt(self.hidden_size), 1 / math.sqrt(self.hidden_size))
        self.register_parameter(name, parameter)


def weights_of(cell: Cell, parameters: Parameters, layer: int, direction: int) -> LayerWeights:
    """The parameters of one layer in one direction (1 is backwards)."""
    suffix = _suffix(layer, direction)

    def get(name: str, there: bool) -> Tensor | None:
        return getattr(parameters, name + suffix) if there else None

    return LayerWeights(
        getattr(parameters, "weight_ih" + suffix),
        get("weight_hh", cell.RECURRENT),
        get("bias_ih", parameters.bias),
        get("bias_hh", parameters.bias and cell.RECURRENT),
        get("weight_hr", parameters.proj_size > 0),
    )


def _suffix(layer: int, direction: int) -> str:
    return f"_l{layer}" + ("_reverse" if direction else "")


def directions(parameters: Parameters) -> int:
    """Number of directions per layer."""
    return 2 if parameters.bidirectional else 1


def state_sizes(cell: Cell, parameters: Parameters) -> list[int]:
    """The size X of each state; the first may be projected."""
    return [parameters.proj_size or parameters.hidden_size] + [parameters.hidden_size] * (len(cell.STATES) - 1)


def state_shapes(cell: Cell, parameters: Parameters) -> list[tuple[int, int]]:
    """The shape ``[L·D, X]`` of each state."""
    count = parameters.num_layers * directions(parameters)
    return [(count, size) for size in state_sizes(cell, parameters)]


def make_step(cell: Cell, parameters: Parameters, fused: bool = False) -> Step:
    """Returns a function that runs one step of every layer with the parameters as they are now.

    The function takes an input ``[B, I]``, ``is_init`` ``[B]``, which zeroes the incoming states (None: no resets), and
    states ``[B, L·D, X]``; it returns the last layer's output ``[B, D·O]`` and the new states. With ``fused`` it may
    call torch's single-step kernels, which round identically but do not support ``torch.vmap``.
    """
    # Not torch.gru_cell: it rounds some gates differently.
    whole = torch.lstm_cell if fused and cell.TORCH is nn.LSTM and parameters.proj_size == 0 else None
    per_layer = directions(parameters)
    weights = [
        [weights_of(cell, parameters, layer, direction) for direction in range(per_layer)]
        for layer in range(parameters.num_layers)
    ]

    def one(weight: LayerWeights, x_BI: Tensor, states_BX: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if whole is not None and x_BI.device.type == "cpu":
            return whole(x_BI, states_BX, weight.w_ih, weight.w_hh, weight.b_ih, weight.b_hh)  # type: ignore[arg-type]
        return step(cell, weight, functional.linear(x_BI, weight.w_ih, weight.b_ih), states_BX)

    def run(
        x_BI: Tensor, is_init_B: Tensor | None, states_BLX: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if is_init_B is not None:
            # where, not multiplication: a non-finite state must not survive its reset.
            states_BLX = tuple(torch.where(is_init_B[:, None, None], 0.0, states) for states in states_BLX)
        entering = zip(*[states.unbind(1) for states in states_BLX], strict=True)
        layer_input = x_BI
        new_states: list[tuple[Tensor, ...]] = []
        for layer, of_layer in enumerate(weights):
            new = [one(each, layer_input, next(entering)) for each in of_layer]
            new_states += new
            layer_input = _next_input(parameters, layer, [states[0] for states in new])
        if len(new_states) == 1:
            return layer_input, tuple([state.unsqueeze(1) for state in new_states[0]])
        return layer_input, tuple([torch.stack(states, 1) for states in zip(*new_states, strict=True)])

    return run


def run_sequence(
    backend: str,
    cell: Cell,
    parameters: Parameters,
    x_BTI: Tensor,
    segments: Segments,
    stored_states_BTLX: tuple[Tensor, ...],
    options: Options,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Runs every step of every layer.

    Step t starts from the stored state at t where a segment starts, else from the state after step t − 1. A layer's
    backward direction runs each segment from last step to first, starting from the state stored at the segment's
    start, and returns its final state at the segment's end, as ``nn.GRU`` does for a whole sequence.

    Returns:
        The last layer's output ``[B, T, D·O]``, and each state ``[B, T, L·D, X]`` at the last step of every segment,
        zero elsewhere.
    """
    sequence = load_backend(backend).sequence
    layer_input = x_BTI
    end_states: list[tuple[Tensor, ...]] = []
    for layer in range(parameters.num_layers):
        outputs = []
        for direction in range(directions(parameters)):
            stored = tuple(states[:, :, len(end_states)] for states in stored_states_BTLX)
            weights = weights_of(cell, parameters, layer, direction)
            x = segments.mirrored(layer_input) if direction else layer_input
            output, states = sequence(cell, x, segments, stored, weights, options)
            outputs.append(segments.mirrored(output) if direction else output)
            end_states.append(states)
        layer_input = _next_input(parameters, layer, outputs)
    if len(end_states) == 1:
        return layer_input, tuple(state.unsqueeze(2) for state in end_states[0])
    return layer_input, tuple(torch.stack(states, 2) for states in zip(*end_states, strict=True))


def _next_input(parameters: Parameters, layer: int, outputs: list[Tensor]) -> Tensor:
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
    if parameters.dropout == 0 or layer == parameters.num_layers - 1:
        return output
    return functional.dropout(output, parameters.dropout, parameters.training)
