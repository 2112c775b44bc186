"""Trunks: preprocessing, the layers around the cell by formula, and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from tasks import CUE
from tensordict import TensorDict, TensorDictBase
from torch import Size, Tensor, nn
from torch.nn import functional

from recurrl.build import make_policy_for, set_process_state
from recurrl.config import TrainConfig
from recurrl.envs import make_env
from recurrl.policy import Policy, PolicyModule, Trunk

Configure = Callable[..., TrainConfig]
Collect = Callable[[TrainConfig], tuple[Policy, TensorDictBase]]


class Seen(NamedTuple):
    """One step of a policy's trunk."""

    policy: Policy
    observation: Tensor
    encoded: Tensor
    rnn_output: Tensor
    features: Tensor


def trunk_of(config: TrainConfig, collect: Collect) -> Seen:
    policy, batch = collect(config)
    trunk, (observation, state, is_init) = policy.trunk, policy.inputs(batch[:, 0])
    with torch.no_grad():
        features, _ = trunk.step(observation, policy.reset(state, is_init))
        encoded = trunk.encoder(trunk.preprocess(observation))
        rnn_output, _ = trunk.core.run(encoded, is_init, tuple(state.values()), sequence=False)
    return Seen(policy, observation, encoded, rnn_output, features)


def test_a_residual_connection_adds_what_entered_the_cell(configure: Configure, collect: Collect) -> None:
    seen = trunk_of(configure(CUE, "policy.residual=true"), collect)
    torch.testing.assert_close(seen.features, seen.rnn_output + seen.encoded)


def test_a_residual_connection_between_other_widths_is_linear(configure: Configure, collect: Collect) -> None:
    seen = trunk_of(configure(CUE, "policy.residual=true", "encoder.sizes=[5]"), collect)
    (shortcut,) = (p for name, p in seen.policy.trunk.named_parameters() if "shortcut" in name)
    torch.testing.assert_close(seen.features, seen.rnn_output + seen.encoded @ shortcut.T)


def test_layer_normalisation_normalises_the_encoders_layers_and_what_leaves_the_cell(
    configure: Configure, collect: Collect
) -> None:
    seen = trunk_of(
        configure(CUE, "policy.layer_norm=true", "encoder.layer_norm=true", "env.normalize_observation=false"), collect
    )
    torch.testing.assert_close(seen.features, functional.layer_norm(seen.rnn_output, [8]))
    layer = seen.policy.trunk.encoder[1](seen.observation)
    torch.testing.assert_close(seen.encoded, functional.layer_norm(layer, [8]).tanh())


@pytest.mark.parametrize("cell", ["gru", "none"])
def test_a_policy_in_float64_is_made_and_acts_the_same_each_time(cell: str, configure: Configure) -> None:
    options = (f"cell={cell}", "policy.layer_norm=true", "policy.residual=true", "env.previous_action=true")
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
    """An ordinary network for one batch dimension, of all entries of a mapping, which remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 2, 3)
        self.shapes: list[tuple[Size, Size]] = []

    def forward(self, observation: Any) -> Tensor:
        vector, number = observation["vector"], observation["more"]["number"]
        self.shapes.append((vector.shape, number.shape))
        return (self.convolution(vector[:, None]) * number[:, None]).flatten(1)

    def observe(self, observation: Any) -> None:
        self(observation)


@pytest.mark.parametrize("kind", [dict, TensorDict], ids=["dict", "TensorDict"])
def test_an_encoder_sees_one_batch_dimension(kind: Callable[..., Any]) -> None:
    encoder = Attending()
    trunk = Trunk(encoder)
    observation = {"vector": torch.randn(5, 7, 4), "more": {"number": torch.randn(5, 7, 1)}}
    features, _ = trunk.sequence(kind(observation), {}, None)
    step = {"vector": observation["vector"][:, 2], "more": {"number": observation["more"]["number"][:, 2]}}
    torch.testing.assert_close(features[:, 2], trunk.step(kind(step), {})[0])
    trunk.observe(kind(observation))
    assert encoder.shapes == [((35, 4), (35, 1)), ((5, 4), (5, 1)), ((35, 4), (35, 1))]
