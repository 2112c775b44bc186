"""The names and shapes that other runtimes expect of an exported file's inputs and outputs.

Shape legend: B batch, L layers.
"""

import torch
from torch import nn

from recurrl.agent.named_arrays import Tensors
from recurrl.agent.step import NEXT, Step
from recurrl.errors import require
from recurrl.keys import ACTION, OBSERVATION
from recurrl.recurrent.module.keys import IS_INIT

RSL_RL = "rsl_rl"
STATES = {"h_in": "h_out", "c_in": "c_out"}
"""For each state input, the output whose value the next step takes as that input."""


def batch_dim(name: str) -> int:
    """The dimension of an input or output that is the batch: the second of rsl_rl's states, else the first."""
    return int(name in (*STATES, *STATES.values()))


def outputs_by_state(outputs: Tensors) -> dict[str, str]:
    """For each state input, the output whose value the next step takes as that input, in either layout."""
    names = STATES | {name.removeprefix(NEXT): name for name in outputs if name.startswith(NEXT)}
    return {state: name for state, name in names.items() if name in outputs}


class RslRlLayout(nn.Module):
    """A step as rsl_rl exports its policies: ``obs, h_in, c_in`` to ``actions, h_out, c_out``.

    Observations ``[B, ...]`` are raw and actions the environment's own. States are ``[L, B, ...]``; a cell with one
    state has no ``c_in``. The step does not reset them: pass zeros at the beginning of an episode.

    Args:
        step: the policy's step.

    Attributes:
        states: ``h`` or ``c``, by the name of the policy's state.

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

    def forward(self, inputs: Tensors) -> Tensors:
        """One step, with this layout's inputs and outputs."""
        states = {name: inputs[f"{short}_in"].transpose(0, 1) for name, short in self.states.items()}
        observed = inputs["obs"]
        is_init_B = torch.zeros_like(observed[:, 0], dtype=torch.bool)
        outputs = self.step({OBSERVATION: observed, IS_INIT: is_init_B, **states})
        new = {f"{short}_out": outputs[NEXT + name].transpose(0, 1) for name, short in self.states.items()}
        return {"actions": outputs[ACTION], **new}

    def inputs_of(self, inputs: Tensors) -> Tensors:
        """Converts the inputs of the policy's step to this layout's."""
        states = {f"{short}_in": inputs[name].transpose(0, 1).contiguous() for name, short in self.states.items()}
        return {"obs": inputs[OBSERVATION], **states}


def _require_policy(condition: bool, what: str, got: str) -> None:
    require(condition, f"--layout rsl_rl needs a policy that {what} (got {got}). Leave --layout out.")
