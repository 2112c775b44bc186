"""Trunks: encoders' layers, batch dimensions and dtypes."""

import pytest
import torch
from tasks import CUE
from tensordict import TensorDict
from torch import nn
from torch.nn import functional

from recurrl.build import make_policy_for, set_process_state
from recurrl.envs import make_env
from recurrl.policy import PolicyModule, Trunk


def test_layer_normalisation_normalises_the_encoders_layers(configure, collect):
    policy, batch = collect(configure(CUE, "encoder.layer_norm=true", "env.normalize_observation=false"))
    encoder, observation = policy.trunk.encoder, batch[:, 0]["observation"]
    layer = encoder[1](observation)
    torch.testing.assert_close(encoder(observation), functional.layer_norm(layer, [8]).tanh())


@pytest.mark.parametrize("cell", ["gru", "none"])
def test_a_policy_in_float64_is_made_and_acts_the_same_each_time(cell, configure):
    options = (f"cell={cell}", "policy.previous_action=true")
    config = configure(CUE, *options, observation="dict", action="dict")
    torch.set_default_dtype(torch.float64)
    try:
        outputs = []
        for _ in range(2):
            set_process_state(config)
            policy = make_policy_for(config)
            assert {parameter.dtype for parameter in policy.parameters()} == {torch.float64}
            env = make_env(config.env, 3, seed=0, policy=policy)
            with torch.no_grad():
                outputs.append(env.rollout(7, PolicyModule(policy), break_when_any_done=False))
    finally:
        torch.set_default_dtype(torch.float32)
    assert outputs[0]["action_log_prob"].dtype == torch.float64
    assert (outputs[0] == outputs[1]).all()


class Attending(nn.Module):
    """An ordinary network for one batch dimension, of all entries of a mapping; it remembers its inputs' shapes."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(1, 2, 3)
        self.shapes = []

    def forward(self, observation):
        vector, number = observation["vector"], observation["more"]["number"]
        self.shapes.append((vector.shape, number.shape))
        return (self.convolution(vector[:, None]) * number[:, None]).flatten(1)

    def observe(self, observation):
        self(observation)


@pytest.mark.parametrize("kind", [dict, TensorDict], ids=["dict", "TensorDict"])
def test_an_encoder_sees_one_batch_dimension(kind):
    encoder = Attending()
    trunk = Trunk(encoder)
    observation = {"vector": torch.randn(5, 7, 4), "more": {"number": torch.randn(5, 7, 1)}}
    features, _ = trunk.run(kind(observation), {}, None, sequence=True)
    step = {"vector": observation["vector"][:, 2], "more": {"number": observation["more"]["number"][:, 2]}}
    torch.testing.assert_close(features[:, 2], trunk.run(kind(step), {}, None, sequence=False)[0])
    trunk.observe(kind(observation))
    assert encoder.shapes == [((35, 4), (35, 1)), ((5, 4), (5, 1)), ((35, 4), (35, 1))]
