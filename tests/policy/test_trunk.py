"""Trunks: encoders' layers, batch dimensions and dtypes."""

import pytest
import torch
from tasks import CUE
from tensordict import TensorDict
from torch import nn
from torch.nn import functional

from recurrl.policy import Trunk


def test_layer_normalisation_normalises_the_encoders_layers(configure, collect):
    policy, batch = collect(configure(CUE, "encoder.layer_norm=true", "env.normalize_observation=false"))
    encoder, observation = policy.trunk.encoder, batch[:, 0]["observation"]
    torch.testing.assert_close(encoder(observation), functional.layer_norm(encoder[1](observation), [8]).tanh())


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

    def update_statistics(self, observation):
        self(observation)


@pytest.mark.parametrize("kind", [dict, TensorDict], ids=["dict", "TensorDict"])
def test_an_encoder_sees_one_batch_dimension(kind):
    trunk = Trunk(encoder := Attending())
    observation = {"vector": torch.randn(5, 7, 4), "more": {"number": torch.randn(5, 7, 1)}}
    features, _ = trunk.run(kind(observation), {}, None, sequence=True)
    step = {"vector": observation["vector"][:, 2], "more": {"number": observation["more"]["number"][:, 2]}}
    torch.testing.assert_close(features[:, 2], trunk.run(kind(step), {}, None, sequence=False)[0])
    trunk.update_statistics(kind(observation))
    assert encoder.shapes == [((35, 4), (35, 1)), ((5, 4), (5, 1)), ((35, 4), (35, 1))]
