"""The λ-discrepancy loss: its second value head, its target and its gradients, in float64."""

import pytest
import torch
from test_ppo import collected, loss_of, make

from recurrl.errors import ConfigError

WEIGHT = "algorithm.discrepancy_coeff=0.25"
TASK = "env=cartpole_no_velocity"


def test_the_second_target_is_the_discounted_return(small):
    algorithm, _, batch = make(small, TASK, WEIGHT, "algorithm.gamma=0.5", "algorithm.lmbda=0")
    rows = collected(batch, value_scale=3.0)
    reward = torch.randn(rows.batch_size, dtype=torch.float64)
    algorithm.prepare(rows, reward)
    expected = torch.zeros_like(reward)
    for t in reversed(range(reward.shape[1])):
        expected[:, t] = reward[:, t] + (0.5 * expected[:, t + 1] if t + 1 < reward.shape[1] else 0)
    torch.testing.assert_close(rows["monte_carlo_target"].squeeze(-1), expected)


def test_terms_and_gradients_are_those_of_the_definition(small):
    algorithm, policy, batch = make(small, TASK, WEIGHT)
    batch["monte_carlo_target"] = torch.randn_like(batch["value_target"])
    output = policy.sequence(*policy.inputs(batch))
    weight, bias = torch.randn(1, 4, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
    algorithm.to(torch.float64).monte_carlo_head.load_state_dict({"weight": weight, "bias": bias})
    estimate = output.features @ weight.T + bias
    terms = loss_of(algorithm, batch).terms
    half = algorithm.options.critic_coeff
    torch.testing.assert_close(terms["monte_carlo"], half * (estimate - batch["monte_carlo_target"]).square().mean())
    torch.testing.assert_close(terms["discrepancy"], 0.25 * (output.value - estimate).square().mean())
    # Both value heads and what they share move towards one another.
    learnt = [*policy.trunk.parameters(), *policy.critic_head.parameters(), *algorithm.monte_carlo_head.parameters()]
    assert all(grad.abs().sum() > 0 for grad in torch.autograd.grad(terms["discrepancy"], learnt))


def test_without_a_weight_nothing_is_added(small):
    algorithm, _, batch = make(small, TASK)
    assert "monte_carlo_head" not in dict(algorithm.named_modules())
    assert set(loss_of(algorithm, batch).terms) == {"objective", "critic", "entropy"}


def test_it_needs_a_shared_critic(small):
    with pytest.raises(ConfigError, match=r"discrepancy_coeff must be 0 with algorithm\.critic=recurrent"):
        make(small, TASK, WEIGHT, "algorithm.critic=recurrent")
