"""The names and shapes of a file's inputs and outputs: recurrl's, or those that other runtimes expect.

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


class StepLayout(nn.Module):
    """A step as it is: recurrl's own layout, with the methods that every layout has.

    Args:
        step: the policy's step.
        sampled: actions are drawn with an input of noise.

    Attributes:
        outputs_by_state: the output that the next step takes for each input of a state.
    """

    def __init__(self, step: Step, sampled: bool) -> None:
        super().__init__()
        self.step = step
        self.outputs_by_state = {name: NEXT + name for name in step.state_shapes(sampled)}

    def forward(self, inputs: Tensors) -> Tensors:
        """One step, with this layout's inputs and outputs."""
        outputs: Tensors = self.step(inputs)
        return outputs

    def inputs_of(self, inputs: Tensors) -> Tensors:
        """This layout's inputs for those of a step."""
        return inputs

    def as_step(self, call: Call) -> Call:
        """A function with the inputs and outputs of a step, which calls a file of this layout."""
        return call


class RslRlLayout(nn.Module):
    """A step as rsl_rl exports its policies: ``obs, h_in, c_in`` to ``actions, h_out, c_out``.

    Observations ``[B, ...]`` are raw and actions the environment's own. States are ``[L, B, ...]``; a cell with one
    state has no ``c_in``. Nothing resets them: zeros are passed at the beginning of an episode.

    Args:
        step: the policy's step.

    Attributes:
        states: h and c, by the names of states.
        outputs_by_state: the output that the next step takes for each input of a state.

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
            kinds = {entry.name: f"{entry.spec.dtype} {tuple(entry.spec.shape)}" for entry in entries}
            vectors = [entry.spec.dtype.is_floating_point and len(entry.spec.shape) == 1 for entry in entries]
            _require_policy(list(kinds) == [name] and all(vectors), f"{what} one vector of numbers", f"{kinds}")
        _require_policy(not interface.added, "observes nothing but one vector", ", ".join(interface.added))
        fits = len(shapes) <= 2 and all(len(shape) == 2 for shape in shapes.values())
        _require_policy(fits, "has one or two states, a vector in each layer", f"{shapes}")
        self.states = dict(zip(shapes, "hc", strict=False))
        self.outputs_by_state = {f"{short}_in": f"{short}_out" for short in self.states.values()}

    def forward(self, inputs: Tensors) -> Tensors:
        """One step, with this layout's inputs and outputs."""
        states = {name: inputs[f"{short}_in"].transpose(0, 1) for name, short in self.states.items()}
        observed = inputs["obs"]
        is_init_B = torch.zeros_like(observed[:, 0], dtype=torch.bool)
        outputs = self.step({OBSERVATION: observed, IS_INIT: is_init_B, **states})
        new = {f"{short}_out": outputs[NEXT + name].transpose(0, 1) for name, short in self.states.items()}
        return {"actions": outputs[ACTION], **new}

    def inputs_of(self, inputs: Tensors) -> Tensors:
        """This layout's inputs for those of a step."""
        entering = (reset_state(inputs[name], inputs[IS_INIT]) for name in self.states)
        layers_first = (state.transpose(0, 1).contiguous() for state in entering)
        return {"obs": inputs[OBSERVATION], **dict(zip(self.outputs_by_state, layers_first, strict=True))}

    def as_step(self, call: Call) -> Call:
        """A function with the inputs and outputs of a step, which calls a file of this layout."""

        def step(inputs: Tensors) -> Tensors:
            outputs = call(self.inputs_of(inputs))
            states = {NEXT + name: outputs[f"{short}_out"].transpose(0, 1) for name, short in self.states.items()}
            return {**self.step(inputs), ACTION: outputs["actions"], **states}

        return step


def _require_policy(condition: bool, what: str, got: str) -> None:
    require(condition, f"--layout rsl_rl needs a policy that {what} (got {got}). Leave --layout out.")
