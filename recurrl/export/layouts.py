"""Policies with the names and shapes that other runtimes expect.

Shape legend: B batch, L layers.
"""

import torch
from torch import nn

from recurrl.agent.named_arrays import Tensors
from recurrl.agent.step import IS_INIT, NEXT, Step
from recurrl.errors import require
from recurrl.export.checking import Call
from recurrl.keys import ACTION, OBSERVATION
from recurrl.recurrent.layer import reset_state

RSL_RL = "rsl_rl"
LAYERS_FIRST = ("h_in", "c_in", "h_out", "c_out")
"""The inputs and outputs whose second dimension is the batch."""


class RslRl(nn.Module):
    """A step as rsl_rl exports its policies: ``obs, h_in, c_in`` to ``actions, h_out, c_out``.

    Observations ``[B, ...]`` are raw and actions the environment's own. States are ``[L, B, ...]``; a cell with one
    state has no ``c_in``. Nothing resets them: zeros are passed at the beginning of an episode.

    Args:
        step: of the policy.

    Attributes:
        states: h and c, by the names of states.
        states_by_input: the output that the next step takes for each input.

    Raises:
        ConfigError: the layout cannot hold the policy.
    """

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step, interface, shapes = step, step.interface, step.state_shapes(sampled=False)
        for what, entries, name in (
            ("observes", interface.observed, OBSERVATION),
            ("acts by", interface.actions, ACTION),
        ):
            found = {entry.name: f"{entry.spec.dtype} {tuple(entry.spec.shape)}" for entry in entries}
            whole = [entry.spec.dtype.is_floating_point and len(entry.spec.shape) == 1 for entry in entries]
            _holds(list(found) == [name] and all(whole), f"{what} one vector of numbers", f"{found}")
        _holds(not interface.added, "observes nothing besides", ", ".join(interface.added))
        vectors = len(shapes) <= 2 and all(len(shape) == 2 for shape in shapes.values())
        _holds(vectors, "has one or two states, a vector in each layer", f"{shapes}")
        self.states = dict(zip(shapes, "hc", strict=False))
        self.states_by_input = {f"{short}_in": f"{short}_out" for short in self.states.values()}

    def forward(self, inputs: Tensors) -> Tensors:
        """One step."""
        states = {name: inputs[f"{short}_in"].transpose(0, 1) for name, short in self.states.items()}
        observed = inputs["obs"]
        is_init_B = torch.zeros_like(observed[:, 0], dtype=torch.bool)
        return self.of_outputs(self.step({OBSERVATION: observed, IS_INIT: is_init_B, **states}))

    def of_inputs(self, inputs: Tensors) -> Tensors:
        """The inputs that stand for a step's."""
        entering = (reset_state(inputs[name], inputs[IS_INIT]) for name in self.states)
        layers_first = (state.transpose(0, 1).contiguous() for state in entering)
        return {"obs": inputs[OBSERVATION], **dict(zip(self.states_by_input, layers_first, strict=True))}

    def of_outputs(self, outputs: Tensors) -> Tensors:
        """The outputs that stand for a step's."""
        states = {f"{short}_out": outputs[NEXT + name].transpose(0, 1) for name, short in self.states.items()}
        return {"actions": outputs[ACTION], **states}

    def as_step(self, call: Call) -> Call:
        """What calls a file of this layout, with the inputs and outputs of a step, for comparing the two."""

        def step(inputs: Tensors) -> Tensors:
            found = call(self.of_inputs(inputs))
            states = {NEXT + name: found[f"{short}_out"].transpose(0, 1) for name, short in self.states.items()}
            return {**self.step(inputs), ACTION: found["actions"], **states}

        return step


def _holds(condition: bool, what: str, found: str) -> None:
    require(condition, f"--layout rsl_rl needs a policy that {what} (got {found}). Leave --layout out.")
