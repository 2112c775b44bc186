"""A stack of recurrent layers over a batch of rows with resets, independent of cell and backend.

Shape legend: B rows, T steps, P steps of all rows (B·T), I input size, O output size of a layer in one direction, L
layers, D directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from recurrl.errors import ConfigError, user_code
from recurrl.recurrent.backends import Backend, Options
from recurrl.recurrent.cell import Cell, States, Weights
from recurrl.recurrent.segments import Segments, mirrored

SUFFIXES = ("_l{}", "_l{}_reverse")
"""The suffixes of torch's parameter names, for a layer's forward and backward direction."""


class StackedParameters(nn.Module):
    """Parameters of stacked layers of a cell that torch has no module for.

    It has no forward: :func:`run_sequence` and :func:`run_step` read its parameters.

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
        self.dropout, self.bidirectional, self.batch_first, self.proj_size = dropout, bidirectional, True, 0
        advice = "Look at its parameters(), states(), initialize() and step()."
        with user_code(f"The cell {cell.name} fails in a first step", advice):
            for layer in range(num_layers):
                inputs = input_size if layer == 0 else directions(self) * cell.hidden_size
                for direction in range(directions(self)):
                    for name, shape in cell.parameters(inputs).items():
                        parameter = nn.Parameter(torch.zeros(shape, device=device))
                        with torch.no_grad():
                            cell.initialize(name, parameter)
                        self.register_parameter(name + SUFFIXES[direction].format(layer), parameter)
            _check_step(cell, self)


Parameters = nn.RNNBase | StackedParameters
"""The parameters of a stack of layers, named by layer and direction as in ``nn.GRU``: ``weight_ih_l0_reverse``."""


def _check_step(cell: Cell, parameters: Parameters) -> None:
    """Compares what one step of the first layer returns with what the cell declares."""
    names = weight_names(cell, parameters)[0][0]
    weights = {name: getattr(parameters, attribute) for name, attribute in names.items()}
    shapes = list(cell.states().values())
    if not weights or not shapes:
        raise ConfigError(
            f"The cell {cell.name} has {len(weights)} parameters and {len(shapes)} states. A cell has at least one of "
            "each; for a layer without memory use cell=none."
        )
    if tensors := [name for name, value in vars(cell).items() if isinstance(value, Tensor | nn.Module)]:
        raise ConfigError(
            f"The cell {cell.name} holds {', '.join(tensors)}, which would be neither trained nor saved. Declare "
            "parameters() instead, and read them from the weights that a step gets."
        )
    like = next(iter(weights.values()))
    entering = tuple(like.new_full((2, *shape), 0.5) for shape in shapes)
    # Torch's count of in-place writes has no public name. Unlike values, it can be read on a fake device.
    versions = [each._version for each in entering]
    with torch.no_grad():
        x = cell.project(weights, like.new_zeros(2, parameters.input_size))
        output, states = cell.step(weights, x, entering)
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
            f"{returned[1:]}, batch dimension aside. Its hidden_size and states() declare {declared[0]} and "
            f"{declared[1:]}."
        )


Names = Sequence[Sequence[Mapping[str, str]]]
"""For each layer and each of its directions, the attribute that holds each parameter, under the cell's name for it."""


def weight_names(cell: Cell, parameters: Parameters) -> Names:
    """The names of a stack's parameters, the forward direction of each layer first."""
    names, suffixes = cell.parameters(parameters.input_size), SUFFIXES[: directions(parameters)]
    return [
        [{name: name + suffix.format(layer) for name in names} for suffix in suffixes]
        for layer in range(parameters.num_layers)
    ]


def directions(parameters: Parameters) -> int:
    """Number of directions per layer."""
    return 2 if parameters.bidirectional else 1


def state_shapes(cell: Cell, parameters: Parameters) -> list[tuple[int, ...]]:
    """The shape ``[L·D, ...]`` of each state."""
    count = parameters.num_layers * directions(parameters)
    return [(count, *shape) for shape in cell.states().values()]


def reset_state(state: Tensor, is_init_B: Tensor) -> Tensor:
    """The state ``[B, ...]`` that enters a step: zeroed where ``is_init_B`` marks the start of an episode."""
    # where, not multiplication: a non-finite state must not survive its reset.
    return torch.where(is_init_B.view(-1, *[1] * (state.ndim - 1)), 0.0, state)


def run_step(cell: Cell, parameters: Parameters, names: Names, x_BI: Tensor, states: States) -> tuple[Tensor, States]:
    """Runs one step of every layer.

    Args:
        cell: computes a step of one layer.
        parameters: the parameters of all layers.
        names: the names of the parameters, see :func:`weight_names`.
        x_BI: the input.
        states: the states that enter the step, ``[B, L·D, ...]`` each.

    Returns:
        The last layer's output ``[B, D·O]`` and the new states.
    """

    def step(x_BI: Tensor, states: States, weights: Weights, direction: int) -> tuple[Tensor, States]:
        return cell.step(weights, cell.project(weights, x_BI), states)

    return _run_layers(step, parameters, names, x_BI, states)


def run_sequence(
    backend: Backend,
    cell: Cell,
    parameters: Parameters,
    names: Names,
    x_BTI: Tensor,
    is_init_BT: Tensor,
    stored_states: States,
    options: Options,
) -> tuple[Tensor, States]:
    """Runs every step of every layer.

    A segment starts at step 0 and wherever ``is_init`` is true. Its first step starts from the stored state at that
    step, every other step from the state after the previous step. A layer's backward direction runs each segment from
    last step to first, starting from the state stored at the segment's start, and returns its final state at the
    segment's end, as ``nn.GRU`` does for a whole sequence.

    Returns:
        The last layer's output ``[B, T, D·O]``, and each state ``[B, T, L·D, ...]`` at the last step of every segment;
        at other steps it may be anything.
    """
    segments = Segments(is_init_BT.to(x_BTI.device))

    def sequence(x_BTI: Tensor, stored: States, weights: Weights, direction: int) -> tuple[Tensor, States]:
        if (device := next(iter(weights.values())).device) != x_BTI.device:  # kernels would read other memory
            raise ValueError(f"The layer is on {device}, but its input is on {x_BTI.device}. Move one of them.")
        mirror_P = segments.mirror() if direction else None
        if mirror_P is not None:
            x_BTI = mirrored(x_BTI, mirror_P)
        run = partial(backend.sequence, cell, x_BTI, segments, stored, weights, options)
        if options.recompute == "none":
            output, states = run()
        else:
            output, states = checkpoint(run, use_reentrant=False, preserve_rng_state=False)
        return output if mirror_P is None else mirrored(output, mirror_P), states

    return _run_layers(sequence, parameters, names, x_BTI, stored_states)


def _run_layers(
    run: Callable[[Tensor, States, Weights, int], tuple[Tensor, States]],
    parameters: Parameters,
    names: Names,
    x: Tensor,
    states: States,
) -> tuple[Tensor, States]:
    """Runs all layers and directions by ``run(x, states, weights, direction)``, which returns an output and states.

    The input is ``[B, I]`` or ``[B, T, I]``; in the states, the dimension L·D follows these batch dimensions.
    """
    dim = x.ndim - 1
    entering = list(zip(*[state.unbind(dim) for state in states], strict=True))
    new_states: list[States] = []
    for layer, of_directions in enumerate(names):
        outputs = []
        for direction, of_weights in enumerate(of_directions):
            weights = {name: getattr(parameters, attribute) for name, attribute in of_weights.items()}
            output, new = run(x, entering[len(new_states)], weights, direction)
            outputs.append(output)
            new_states.append(new)
        x = output if len(outputs) == 1 else torch.cat(outputs, -1)
        if parameters.dropout and layer < len(names) - 1:
            x = functional.dropout(x, parameters.dropout, parameters.training)
    if len(new_states) == 1:
        return x, tuple([state.unsqueeze(dim) for state in new_states[0]])
    return x, tuple([torch.stack(states, dim) for states in zip(*new_states, strict=True)])
