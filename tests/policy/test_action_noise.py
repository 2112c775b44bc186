"""The noise of actions: correlated from step to step, and of the policy's own distribution at each."""

import pytest
import torch
from collected import collected

from recurrl.build import make_policy_for
from recurrl.keys import NOISE

OPTIONS = ("cell.hidden_size=4", "encoder.sizes=[4]", "env=pendulum_no_velocity", "env.num_envs=64")


def correlation(a, b):
    return float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1])


@pytest.mark.parametrize("cell", ["gru", "none"])
@pytest.mark.parametrize("expected", [0.9, 0.0])
def test_actions_deviate_alike_within_an_episode_and_not_across_its_end(expected, cell, small):
    overrides = (f"policy.noise_correlation={expected}", f"cell={cell}", "env.max_episode_steps=20")
    policy, batch = collected(small(*OPTIONS, *overrides, "frames_per_batch=5120", "slice_len=20"))
    distribution, _, _, _ = policy.sequence(*policy.inputs(batch))
    torch.testing.assert_close(distribution.log_prob(batch["action"]), batch["action_log_prob"])
    deviation = ((batch["action"] - distribution.mean) / distribution.stddev).detach().squeeze(-1)
    starts = batch["is_init"].squeeze(-1)[:, 1:]
    before, after = deviation[:, :-1], deviation[:, 1:]
    assert deviation.std().item() == pytest.approx(1, abs=0.05)
    assert correlation(before[~starts], after[~starts]) == pytest.approx(expected, abs=0.04)
    assert correlation(before[starts], after[starts]) == pytest.approx(0, abs=0.25)


def test_noise_starts_where_an_episode_does_and_deterministic_steps_leave_it(small):
    policy = make_policy_for(small(*OPTIONS, "policy.noise_correlation=0.9"))
    state = {**policy.initial_state(2), NOISE: torch.full((2, 1), 50.0)}
    observation, is_init = torch.zeros(2, 2), torch.tensor([True, False])
    after = policy.step(observation, state, is_init, torch.randn(2, 1)).state
    assert after[NOISE][0].abs().item() < 10
    assert after[NOISE][1].item() == pytest.approx(45, abs=5)
    action, _, _, after, *_ = policy.step(observation, state, is_init)
    assert after[NOISE].tolist() == [[0.0], [50.0]]
    assert torch.equal(action, policy.step(observation, policy.initial_state(2))[0])
