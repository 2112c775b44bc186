"""Masks of actions: what they reject, and that no action is done which they do not allow."""

import pytest
import torch
from rejections import error_of
from tasks import CUE, FROM_INFO, MASKED_KINDS
from torchrl.data import Binary, Categorical, Composite, Unbounded

from recurrl.envs import make_batched_env, make_env
from recurrl.errors import EnvError
from recurrl.evaluation import random_metrics
from recurrl.policy import make_policy


@pytest.mark.parametrize("kind", MASKED_KINDS)
def test_what_is_not_allowed_is_not_done_at_random_or_to_find_out_whether_reset_seeds_are_heeded(kind, configure):
    """The task rejects it; so it does in training (``test_every_kind.py``) and in use (``test_agent.py``)."""
    env_id, overrides, kwargs = MASKED_KINDS[kind]
    config = configure(env_id, *overrides, **kwargs)
    random_metrics(config.env, episodes=5, seed=1)
    make_batched_env(config.env, 2, seed=0, group_size=2).close()


def test_a_mask_that_the_info_does_not_hold_is_rejected(configure):
    config = configure(CUE, FROM_INFO)
    assert "returned no info['action_mask']" in error_of(make_env(config.env, 1, seed=0).reset, kind=EnvError)


UNMASKABLE = [Unbounded((2,)), Binary(2), Composite(a=Categorical(2))]
DO_NOT_GO_TOGETHER = [
    *((action, Binary(2), "Masks need a single discrete or multi-discrete action") for action in UNMASKABLE),
    (Categorical(3), Binary(4), "has shape (4,), but its actions have 3 choices"),
    (Categorical(3, shape=(2,)), Binary(3), "has shape (3,), but its actions have 6 choices"),
]


@pytest.mark.parametrize(("action", "mask", "sentence"), DO_NOT_GO_TOGETHER)
def test_a_mask_that_does_not_go_with_the_action_is_rejected(action, mask, sentence, compose):
    observation = Composite(observation=Composite(seen=Unbounded((2,)), action_mask=mask))
    assert sentence in error_of(make_policy, compose("device=cpu"), observation, action)


def test_the_first_policy_is_uniform_over_what_is_allowed(compose):
    observation = Composite(observation=Composite(seen=Unbounded((2,)), action_mask=Binary(4)))
    policy = make_policy(compose("device=cpu", "cell=none"), observation, Categorical(4))
    seen = {"seen": torch.randn(9, 2), "action_mask": torch.tensor([[0, 1, 0, 1]] * 9)}
    probability = policy.step(seen, {}).distribution.probs
    torch.testing.assert_close(probability, torch.tensor([[0, 0.5, 0, 0.5]] * 9), rtol=0, atol=0.02)
