"""Critics: on the actor's trunk, or on one of their own, recurrent or feed-forward."""

import pytest
import torch

from recurrl.build import make_policy_for


@pytest.mark.parametrize(("critic", "own_states"), [("shared", 0), ("recurrent", 2), ("feedforward", 0)])
def test_a_recurrent_critic_has_states_of_its_own(critic, own_states, small):
    policy = make_policy_for(small("cell=lstm", f"algorithm.critic={critic}"))
    assert len(policy.state_keys) == len(set(policy.state_keys)) == 2 + own_states


@pytest.mark.parametrize("critic", ["shared", "recurrent", "feedforward"])
def test_values_have_gradients_in_the_actors_trunk_only_where_it_is_shared(critic, small):
    policy = make_policy_for(small(f"algorithm.critic={critic}"))
    stored = {key: torch.zeros(3, 4, *shape) for key, shape in policy.state_shapes.items()}
    output = policy.sequence(torch.randn(3, 4, 2), stored, torch.zeros(3, 4, dtype=torch.bool))
    output.value.square().sum().backward()
    reached = {name.partition(".")[0] for name, p in policy.named_parameters() if p.grad is not None}
    assert reached == {"critic_head", "trunk" if critic == "shared" else "critic_trunk"}
