"""The rollout: the same transitions as by TorchRL's collectors, from any environment."""

from functools import partial
from itertools import cycle

import pytest
import torch
from collected import collecting, fresh_policy, rollouts
from rejections import error_of
from tasks import VECTOR
from test_collector_state import OF_TORCHRL
from torchrl.collectors import Collector, MultiSyncCollector

from recurrl.collector.collector import FAILED
from recurrl.envs import make_env
from recurrl.errors import EnvError, NonFiniteError
from recurrl.policy import Policy, PolicyModule

OPTIONS = ("cell.hidden_size=12", "encoder.sizes=[16]", "env.num_envs=5", "frames_per_batch=200", "seed=3")
DISCRETE = ("env=gym", "env.id=FrozenLake-v1", "env.max_episode_steps=9")
"""Discrete observations; most episodes terminate, a few are truncated."""
CUE = ("env=gym", "env.packages=[tasks]", "env.id=recurrl-test/Cue-v0", "+env.kwargs.action=dict")
SHORT = "env.max_episode_steps=17"


make = partial(fresh_policy, std=0.5)
"""A policy whose actions are far from uniform."""


def batches(config, policy, count=4):
    """Rollouts of a policy whose statistics change from one to the next."""
    torch.manual_seed(1)
    found = []
    for rows in rollouts(config, policy, count):
        found.append(rows.clone())
        policy.update_statistics(rows["observation"])
    return found


def by_torchrl(config, policy, count=4):
    """The same by TorchRL's collector."""
    envs, steps = config.env.num_envs, config.frames_per_batch // config.env.num_envs
    module = PolicyModule(policy)
    plain = {"trust_policy": True, "auto_register_policy_transforms": False, "track_traj_ids": False}
    frames = {"frames_per_batch": config.frames_per_batch, "total_frames": -1}
    collector = Collector(make_env(config.env, envs, config.seed, policy), module, **frames, **plain)
    # Only now, because the collector's constructor tries the policy.
    torch.manual_seed(1)
    noise = iter(torch.cat([torch.randn(steps, envs, policy.noise_size) for _ in range(count)]))
    module._noise = lambda *_: next(noise)
    found = []
    for _, batch in zip(range(count), collector, strict=False):
        found.append(batch.clone())
        policy.update_statistics(batch["observation"])
    collector.shutdown()
    return found


ENVIRONMENTS = {
    "cartpole": (("env=cartpole_no_velocity", SHORT), {"terminated", "truncated"}),
    "vector": ((*VECTOR, "env.kwargs.max_episode_steps=17"), {"terminated", "truncated"}),
    "correlated noise": (("env=pendulum_no_velocity", SHORT, "policy.noise_correlation=0.9"), {"truncated"}),
    "discrete": (DISCRETE, {"terminated", "truncated"}),
    "correlated choices": ((*DISCRETE, "policy.noise_correlation=0.5"), {"terminated", "truncated"}),
    "in torch": (("env=t_maze_active", "env.kwargs.length=2", "env.max_episode_steps=9"), {"terminated", "truncated"}),
    "several parts": ((*CUE, "policy.noise_correlation=0.5"), {"terminated"}),
    "of TorchRL": (OF_TORCHRL, {"terminated", "truncated"}),
}


@pytest.mark.parametrize(("kind", "cell"), [*zip(ENVIRONMENTS, cycle(["gru", "lstm", "none"]))])
def test_transitions_are_those_of_torchrls_collector(kind, cell, small):
    env, ends = ENVIRONMENTS[kind]
    config = small(f"cell={cell}", "cell.num_layers=2", *OPTIONS, *env)
    found, expected = batches(config, make(config)), by_torchrl(config, make(config))
    for ours, theirs in zip(found, expected, strict=True):
        for key, value in ours.items(True, True):
            rounded = theirs[key].to(value.dtype)
            torch.testing.assert_close(value, rounded, rtol=1e-6, atol=1e-6, msg=str(key))
    assert {key for key in ("terminated", "truncated") if any(batch["next", key].any() for batch in found)} == ends


@pytest.mark.slow
def test_torchrls_workers_collect_from_the_environment(small):
    config = small(*OPTIONS, SHORT)
    policy = make(config)
    makers = [partial(make_env, config.env, 2, seed, policy) for seed in (0, 1)]
    frames = {"frames_per_batch": 160, "total_frames": 320, "cat_results": 0}
    collector = MultiSyncCollector(makers, PolicyModule(policy), **frames)
    for batch in collector:
        assert batch.shape == (4, 40)
        assert (batch["is_init"].squeeze(-1)[:, 1:] == batch["next", "done"].squeeze(-1)[:, :-1]).all()
    collector.shutdown()


class Cautious(Policy):
    """Only ever takes the most probable action."""

    def step(self, *arguments, **options):
        return super().step(*arguments[:3])


def test_the_policys_step_acts(small):
    config = small(*OPTIONS)
    policy, same = make(config), make(config)
    policy.__class__ = Cautious
    (batch,) = batches(config, policy, 1)
    assert torch.equal(batch["action"], same.sequence(*same.inputs(batch)).distribution.logits.argmax(-1))


def test_a_policy_whose_buffers_change_as_it_acts_can_be_trained(small):
    def scaled_by_a_running_mean(module, _, features):
        scaled = features * module.mean
        module.mean = 0.9 * module.mean + 0.1 * features.detach().mean()
        return scaled

    config = small(*OPTIONS)
    policy = make(config)
    encoder = policy.trunk.encoder
    encoder.register_buffer("mean", torch.ones(()))
    encoder.register_forward_hook(scaled_by_a_running_mean)
    (batch,) = batches(config, policy, 1)
    assert encoder.mean != 1
    policy.sequence(*policy.inputs(batch)).features.sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_non_finite_probabilities_end_the_collection(small):
    config = small(*OPTIONS)
    policy = make(config)
    with torch.no_grad():
        policy.actor_head.network.bias[0] = float("nan")
    assert "produced non-finite action probabilities" in error_of(batches, config, policy, 1, kind=NonFiniteError)


def test_episodes_of_rows_that_are_rejected_are_not_continued(small, monkeypatch):
    def rejected(_):
        raise EnvError("a reward is not finite")

    with collecting(config := small(*OPTIONS), make(config)) as rollout:
        monkeypatch.setattr(rollout.env, "check_rows", rejected)
        assert error_of(rollout.collect, kind=EnvError) == "a reward is not finite"
        assert rollout.state_dict()["unsavable_reason"] == FAILED
