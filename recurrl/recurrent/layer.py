"""A stack of recurrent layers over a batch of rows with resets: what is the same for every cell and backend.

Shape legend: B rows, T steps, I input size, H hidden size, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.backends import LayerWeights, Options, load_backend
from recurrl.recurrent.cells import Cell
from recurrl.recurrent.segments import Segments


class Parameters(nn.RNNBase):
    """The parameters of a stack of layers, named, shaped and initialised as in ``nn.GRU`` and ``nn.LSTM``.

    It has no forward of its own: :func:`run_sequence` and :func:`run_step` compute from it.
    """

    def weights(self, layer: int) -> LayerWeights:
        """The parameters of one layer."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if self.bias else ("weight_ih", "weight_hh")
        found = [getattr(self, f"{name}_l{layer}") for name in names]
        return LayerWeights(*found, *[None] * (4 - len(found)))


def run_step(
    cell: Cell, parameters: Parameters, x_BI: Tensor, is_init_B: Tensor, states_BLH: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One step of every layer. ``is_init`` zeroes the incoming states.

    Returns:
        The last layer's output ``[B, H]`` and the new states, ``[B, L, H]`` each.
    """
    keep_B1 = ~is_init_B[:, None]
    layer_input = x_BI
    new_states: list[tuple[Tensor, ...]] = []
    for layer in range(parameters.num_layers):
        weights = parameters.weights(layer)
        # A select, not a product: a state that is not finite must not survive its own reset.
        entering = tuple(torch.where(keep_B1, states[:, layer], 0.0) for states in states_BLH)
        x_gates = functional.linear(layer_input, weights.w_ih, weights.b_ih)
        h_gates = functional.linear(entering[0], weights.w_hh, weights.b_hh)
        states = cell.activate(x_gates, h_gates, entering)
        new_states.append(states)
        layer_input = _dropout(parameters, layer, states[0])
    return layer_input, tuple(torch.stack(states, 1) for states in zip(*new_states, strict=True))


def run_sequence(
    backend: str,
    cell: Cell,
    parameters: Parameters,
    x_BTI: Tensor,
    segments: Segments,
    stored_states_BTLH: tuple[Tensor, ...],
    options: Options,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Every step of every layer.

    The state entering step t is the stored state at t where a segment starts, else what step t − 1 produced.

    Returns:
        The last layer's output ``[B, T, H]``; and each state ``[B, T, L, H]``, true at the last step of every
        segment and zero elsewhere.
    """
    sequence = load_backend(backend).sequence
    layer_input = x_BTI
    end_states: list[tuple[Tensor, ...]] = []
    for layer in range(parameters.num_layers):
        stored = tuple(states[:, :, layer] for states in stored_states_BTLH)
        layer_output, states = sequence(cell, layer_input, segments, stored, parameters.weights(layer), options)
        end_states.append(states)
        layer_input = _dropout(parameters, layer, layer_output)
    at_end = segments.ends_BT[..., None, None]
    return layer_input, tuple(
        torch.where(at_end, torch.stack(states, 2), 0.0) for states in zip(*end_states, strict=True)
    )


def _dropout(parameters: Parameters, layer: int, output: Tensor) -> Tensor:
    if parameters.dropout == 0 or layer == parameters.num_layers - 1:
        return output
    return functional.dropout(output, parameters.dropout, parameters.training)
