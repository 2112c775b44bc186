"""Initial values of the recurrent layer in a policy: those of the cell, or orthogonal for gates without their own."""

import pytest
import torch
from found import CELLS
from torchrl.data import Categorical, Composite, Unbounded

from recurrl.policy import make_policy
from recurrl.recurrent import Cell, GatedCell


class Gated(GatedCell):
    GATES = 1

    def activate(self, x_gates_BG, h_gates_BG, states_BH):
        return (torch.tanh(x_gates_BG + h_gates_BG),)


class GatedWithItsOwn(Gated):
    def initialize(self, name, parameter):
        parameter.fill_(3.0) if name == "bias_ih" else super().initialize(name, parameter)


ALL = {**CELLS, "Gated": Gated, "GatedWithItsOwn": GatedWithItsOwn}


@pytest.mark.parametrize("name", ALL)
def test_a_policy_keeps_the_initial_values_that_a_cell_defines(name, small, monkeypatch):
    cell, values = ALL[name](8), []
    initialize = cell.initialize

    def recorded(name, parameter):
        initialize(name, parameter)
        values.append(parameter.clone())

    cell.initialize = recorded
    monkeypatch.setattr("recurrl.policy.build.cell_from_options", lambda _: cell)
    config = small("cell.num_layers=2", "algorithm.critic=recurrent", "policy.previous_action=false")
    policy = make_policy(config, Composite(observation=Unbounded((3,))), Categorical(4))
    cores = policy.trunk.core, policy.critic_trunk.core
    parameters = [each for core in cores for each in core.layers.parameters()]
    if isinstance(cell, GatedCell) and type(cell).initialize is Cell.initialize:
        assert not any(parameter.any() for parameter in parameters if parameter.ndim == 1)
        for block in (block for parameter in parameters if parameter.ndim == 2 for block in parameter.split(8)):
            torch.testing.assert_close(block @ block.mT, torch.eye(8))
    else:
        assert len(values) == len(parameters)
        assert all(map(torch.equal, parameters, values))
