"""A stack of recurrent layers over a batch of rows with resets, independent of cell and backend.

Shape legend: B rows, T steps, P steps of all rows (B·T), I input size, O output size of a layer in one direction, L
layers, D directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from recurrl.errors import ConfigError, user_code
from recurrl.recurrent.backends import Backend, Options
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.segments import Segments


class StackedParameters(nn.Module):
    """Parameters of stacked layers of a cell that torch has no module for.

    It has no forward: :func:`run_layers` reads its parameters.

    Raises:
        ConfigError: the cell's code fails, or its step does not do what the cell declares.
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
        self.dropout, self.bidirectional = dropout, bidirectional
        written = [name for name in vars(type(cell)) if name[0] != "_" or name == "__init__"]
        advice = f"Look at its {', '.join(written)}."
        with user_code(f"The cell {cell.name} fails in a first step", advice):
            for layer, direction_names in enumerate(weight_names(cell, self)):
                shapes = cell.parameter_shapes(input_size if layer == 0 else directions(self) * cell.hidden_size)
                for name, attribute in chain.from_iterable(names.items() for names in direction_names):
                    parameter = nn.Parameter(torch.zeros(shapes[name], device=device))
                    with torch.no_grad():
                        cell.initialize(name, parameter)
                    self.register_parameter(attribute, parameter)
            _check_step(cell, self)


Parameters = nn.RNNBase | StackedParameters
"""The parameters of a stack of layers, named by layer and direction as in ``nn.GRU``: ``weight_ih_l0_reverse``."""


def _check_step(cell: Cell, parameters: Parameters) -> None:
    """Compares what one step of the first layer returns with what the cell declares."""
    names = weight_names(cell, parameters)[0][0]
    weights = {name: getattr(parameters, attribute) for name, attribute in names.items()}
    shapes = list(cell.state_shapes().values())
    if not weights or not shapes:
        raise ConfigError(
            f"The cell {cell.name} has {len(weights)} parameters and {len(shapes)} states. A cell has at least one of "
            "each; for a layer without memory use cell=none."
        )
    if tensors := [name for name, value in vars(cell).items() if isinstance(value, Tensor | nn.Module)]:
        raise ConfigError(
            f"The cell {cell.name} holds {', '.join(tensors)}, which would be neither trained nor saved. Declare it in "
            "parameter_shapes() or state_shapes() instead, and read it from the weights or states that a step gets."
        )
    like = next(iter(weights.values()))
    entering = tuple(like.new_full((2, *shape), 0.5) for shape in shapes)
    # Torch's count of in-place writes has no public name. Unlike values, it can be read on a fake device.
    versions, before = [each._version for each in entering], vars(cell).copy()
    with torch.no_grad():
        x = cell.project(weights, like.new_zeros(2, parameters.input_size))
        output, states = cell.step(weights, x, entering)
    if kept := [name for name, value in vars(cell).items() if value is not before.get(name)]:
        raise ConfigError(f"A step of the cell {cell.name} must not set self.{kept[0]}. Keep it in a state instead.")
    if not isinstance(states, tuple):
        raise ConfigError(
            f"A step of the cell {cell.name} must return its output and a tuple of states (got a "
            f"{type(states).__name__}). Return (output, (state,)), for example; from a GatedCell's activate, (state,)."
        )
    if versions != [each._version for each in entering]:
        raise ConfigError(f"A step of the cell {cell.name} writes into the states it gets. Return new tensors.")
    if wrong := [value.dtype for value in (output, *states) if value.dtype != like.dtype]:
        raise ConfigError(
            f"A step of the cell {cell.name} returns {wrong[0]}, but its parameters are {like.dtype}. Return that."
        )
    returned, declared = [tuple(value.shape[1:]) for value in (output, *states)], [(cell.hidden_size,), *shapes]
    if returned != declared:
        raise ConfigError(
            f"A step of the cell {cell.name} returns an output of shape {returned[0]} and states of shapes "
            f"{returned[1:]}, batch dimension aside. Its hidden_size and states declare {declared[0]} and "
            f"{declared[1:]}. Make them agree."
        )


Names = Sequence[Sequence[Mapping[str, str]]]
"""For each layer and each of its directions, the attribute that holds each parameter, under the cell's name for it."""


def weight_names(cell: Cell, parameters: Parameters) -> Names:
    """The names of a stack's parameters, the forward direction of each layer first."""
    names, suffixes = cell.parameter_shapes(parameters.input_size), ("", "_reverse")[: directions(parameters)]
    return [
        [{name: f"{name}_l{layer}{suffix}" for name in names} for suffix in suffixes]
        for layer in range(parameters.num_layers)
    ]


def directions(parameters: Parameters) -> int:
    """Number of directions per layer."""
    return 2 if parameters.bidirectional else 1


def stacked_state_shapes(cell: Cell, parameters: Parameters) -> list[tuple[int, ...]]:
    """The shape ``[L·D, ...]`` of each state."""
    count = parameters.num_layers * directions(parameters)
    return [(count, *shape) for shape in cell.state_shapes().values()]


def reset_state(state: Tensor, is_init_B: Tensor) -> Tensor:
    """The state ``[B, ...]`` that enters a step: zeroed where ``is_init_B`` marks the start of an episode."""
    # where, not multiplication: a non-finite state must not survive its reset.
    return torch.where(is_init_B.view(-1, *[1] * (state.ndim - 1)), 0.0, state)


LayerRun = Callable[[Tensor, States, Weights, bool], tuple[Tensor, States]]
"""Runs one layer in one direction: from its input, the states that enter, its weights, and whether it runs backwards,
to its output and the new states."""


def one_step(cell: Cell) -> LayerRun:
    """Runs one step of a layer: input ``[B, I]``, states ``[B, ...]``."""
    return lambda x_BI, states, weights, _: cell.step(weights, cell.project(weights, x_BI), states)


def all_steps(backend: Backend, cell: Cell, segments: Segments, options: Options) -> LayerRun:
    """Runs every step of a layer: input ``[B, T, I]``, stored states ``[B, T, ...]``.

    The first step of a segment starts from the stored state at that step, every other step from the state after the
    previous step. The backward direction runs each segment from last step to first, starting from the state stored at
    the segment's start, and returns its final state at the segment's end, as ``nn.GRU`` does for a whole sequence.
    Returned states are those after each segment's last step; at other steps they may be anything.
    """

    def run(x_BTI: Tensor, stored: States, weights: Weights, backwards: bool) -> tuple[Tensor, States]:
        # Kernels would read out of bounds, or other memory.
        for shape, state in zip(cell.state_shapes().values(), stored, strict=True):
            if state.shape != (*x_BTI.shape[:2], *shape):
                expected = [*x_BTI.shape[:2], *shape]
                raise ValueError(f"A layer's stored states must be {expected} (got {list(state.shape)}).")
        if (device := next(iter(weights.values())).device) != x_BTI.device:
            raise ValueError(f"The layer is on {device}, but its input is on {x_BTI.device}. Move one of them.")
        if backwards:
            x_BTI = segments.mirrored(x_BTI)
        run_backend = partial(backend.sequence, cell, x_BTI, segments, stored, weights, options)
        if options.recompute == "none":
            output, states = run_backend()
        else:
            output, states = checkpoint(run_backend, use_reentrant=False, preserve_rng_state=False)
        return segments.mirrored(output) if backwards else output, states

    return run


def run_layers(run: LayerRun, parameters: Parameters, names: Names, x: Tensor, states: States) -> tuple[Tensor, States]:
    """Runs all layers in all their directions.

    Args:
        run: runs one layer in one direction, see :func:`one_step` and :func:`all_steps`.
        parameters: the parameters of all layers.
        names: the names of the parameters, see :func:`weight_names`.
        x: the input ``[B, I]`` or ``[B, T, I]``.
        states: the states that enter; in them, the dimension L·D follows the input's batch dimensions.

    Returns:
        The last layer's output, with D·O features, and the new states.
    """
    dim = x.ndim - 1
    entering = list(zip(*[state.unbind(dim) for state in states], strict=True))
    new_states: list[States] = []
    for layer, direction_names in enumerate(names):
        outputs = []
        for backwards, attributes in zip((False, True), direction_names, strict=False):
            weights = {name: getattr(parameters, attribute) for name, attribute in attributes.items()}
            output, new = run(x, entering[len(new_states)], weights, backwards)
            outputs.append(output)
            new_states.append(new)
        x = output if len(outputs) == 1 else torch.cat(outputs, -1)
        if parameters.dropout and layer < len(names) - 1:
            x = functional.dropout(x, parameters.dropout, parameters.training)
    if len(new_states) == 1:
        return x, tuple([state.unsqueeze(dim) for state in new_states[0]])
    return x, tuple([torch.stack(states, dim) for states in zip(*new_states, strict=True)])
