"""A stack of recurrent layers over a batch of rows with resets, independent of cell and backend.

Shape legend: B rows, T steps, I input size, H hidden size, O output size of a layer in
one direction, L layers, D directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.errors import ConfigError
from recurrl.recurrent.backends import Backend, Options, load_backend
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.segments import Segments, expanded, mirrored


class Parameters(Protocol):
    """The parameters of a stack of layers, named by layer and direction as in ``nn.GRU``: ``weight_ih_l0_reverse``."""

    input_size: int
    hidden_size: int
    num_layers: int
    dropout: float
    bidirectional: bool
    proj_size: int
    training: bool

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields each parameter with its name."""
        ...


class Stack(nn.Module):
    """Parameters of stacked layers of a cell that torch has no module for.

    It has no forward: :func:`run_sequence` and :func:`run_step` read its parameters.

    Raises:
        ConfigError: the cell's step does not return what the cell declares.
    """

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        num_layers: int = 1,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, cell.hidden_size, num_layers
        self.dropout, self.bidirectional, self.batch_first, self.proj_size = dropout, bidirectional, True, 0
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else directions(self) * cell.hidden_size
            for direction in range(directions(self)):
                for name, shape in cell.parameters(inputs).items():
                    parameter = nn.Parameter(torch.empty(shape, device=device))
                    with torch.no_grad():
                        cell.initialize(name, parameter)
                    self.register_parameter(name + _suffix(layer, direction), parameter)
        _check_step(cell, self)


def _check_step(cell: Cell, parameters: Parameters) -> None:
    """Compares what one step of the first layer returns with what the cell declares."""
    weights, shapes = weights_of(cell, parameters, 0, 0), list(cell.states().values())
    if not weights or not shapes:
        raise ConfigError(
            f"The cell {cell.name} has {len(weights)} parameters and {len(shapes)} states. A cell has at least one of "
            "each; for a layer without memory use cell=none."
        )
    like = next(iter(weights.values()))
    with torch.no_grad():
        x = cell.project(weights, like.new_zeros(2, parameters.input_size))
        output, states = cell.step(weights, x, tuple(like.new_zeros(2, *shape) for shape in shapes))
    found, declared = [tuple(value.shape[1:]) for value in (output, *states)], [(cell.hidden_size,), *shapes]
    if found != declared:
        raise ConfigError(
            f"A step of the cell {cell.name} returns an output of shape {found[0]} and states of shapes {found[1:]}, "
            f"batch dimension aside. Its hidden_size and states() declare {declared[0]} and {declared[1:]}."
        )


def weights_of(cell: Cell, parameters: Parameters, layer: int, direction: int) -> dict[str, Tensor]:
    """The parameters of one layer in one direction (1 is backwards), by the cell's names."""
    suffix = _suffix(layer, direction)
    return {name: getattr(parameters, name + suffix) for name in cell.parameters(parameters.input_size)}


def _suffix(layer: int, direction: int) -> str:
    return f"_l{layer}" + ("_reverse" if direction else "")


def directions(parameters: Parameters) -> int:
    """Number of directions per layer."""
    return 2 if parameters.bidirectional else 1


def state_shapes(cell: Cell, parameters: Parameters) -> list[tuple[int, ...]]:
    """The shape ``[L·D, ...]`` of each state."""
    count = parameters.num_layers * directions(parameters)
    return [(count, *shape) for shape in cell.states().values()]


def reset_states(states: States, is_init_B: Tensor) -> States:
    """States ``[B, ...]`` that enter a step: zero where an episode starts, where ``is_init_B`` is true."""
    # where, not multiplication: a non-finite state must not survive its reset.
    return tuple([torch.where(expanded(is_init_B, state), 0.0, state) for state in states])


def run_step(
    cell: Cell, parameters: Parameters, x_BI: Tensor, states: States, fused: bool = False
) -> tuple[Tensor, States]:
    """Runs one step of every layer.

    Args:
        cell: computes a step of one layer.
        parameters: those of all layers.
        x_BI: the input.
        states: those that enter the step, ``[B, L·D, ...]`` each.
        fused: call torch's single-step kernels where there are any. They round identically, but do not support
            ``torch.vmap``.

    Returns:
        The last layer's output ``[B, D·O]`` and the new states.
    """
    entering = zip(*[state.unbind(1) for state in states], strict=True)
    layer_input = x_BI
    new_states: list[States] = []
    for layer in range(parameters.num_layers):
        outputs = []
        for direction in range(directions(parameters)):
            weights = weights_of(cell, parameters, layer, direction)
            output, new = _one_step(cell, weights, layer_input, next(entering), fused)
            outputs.append(output)
            new_states.append(new)
        layer_input = _next_input(parameters, layer, outputs)
    if len(new_states) == 1:
        return layer_input, tuple([state.unsqueeze(1) for state in new_states[0]])
    return layer_input, tuple([torch.stack(states, 1) for states in zip(*new_states, strict=True)])


def _one_step(cell: Cell, weights: Weights, x_BI: Tensor, states: States, fused: bool) -> tuple[Tensor, States]:
    """One step of one layer in one direction."""
    # Not torch.gru_cell: it rounds some gates differently.
    if fused and cell.TORCH is nn.LSTM and "weight_hr" not in weights and x_BI.device.type == "cpu":
        states = torch.lstm_cell(x_BI, states, *weights.values())
        return states[0], states
    return cell.step(weights, cell.project(weights, x_BI), states)


def run_sequence(
    backend: str | Backend,
    cell: Cell,
    parameters: Parameters,
    x_BTI: Tensor,
    segments: Segments,
    stored_states: States,
    options: Options,
) -> tuple[Tensor, States]:
    """Runs every step of every layer.

    Step t starts from the stored state at t where a segment starts, else from the state after step t − 1. A layer's
    backward direction runs each segment from last step to first, starting from the state stored at the segment's
    start, and returns its final state at the segment's end, as ``nn.GRU`` does for a whole sequence.

    Returns:
        The last layer's output ``[B, T, D·O]``, and each state ``[B, T, L·D, ...]`` at the last step of every segment,
        zero elsewhere.
    """
    sequence = load_backend(backend).sequence
    layer_input = x_BTI
    mirrors = [None, segments.mirror()] if parameters.bidirectional else [None]
    end_states: list[States] = []
    for layer in range(parameters.num_layers):
        outputs = []
        for direction, mirror_P in enumerate(mirrors):
            stored = tuple(states[:, :, len(end_states)] for states in stored_states)
            weights = weights_of(cell, parameters, layer, direction)
            x = layer_input if mirror_P is None else mirrored(layer_input, mirror_P)
            output, states = sequence(cell, x, segments, stored, weights, options)
            outputs.append(output if mirror_P is None else mirrored(output, mirror_P))
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
