"""What surrounds the cell: the residual connection and layer normalisation, by formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from tasks import CUE
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn import functional

from recurrl.build import make_policy_for, set_process_state
from recurrl.config import TrainConfig
from recurrl.envs import make_env
from recurrl.policy import Policy, PolicyModule

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
        features, _ = trunk.stepper()(observation, state, is_init)
        encoded = trunk.encoder(observation)
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
    seen = trunk_of(configure(CUE, "policy.layer_norm=true", "env.normalize_observation=false"), collect)
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
