"""Policies and what they collect, made as a run makes them."""

from contextlib import contextmanager

import torch

from recurrl.build import make_algorithm, make_collector, make_policy_for, set_process_state
from recurrl.policy import ACTION, LOG_PROB, VALUE


def fresh_policy(config, std=0.0):
    """The policy of a configuration; ``std``: with heads far from their initial zeros, so that a wrong input shows."""
    set_process_state(config)
    policy = make_policy_for(config)
    with torch.no_grad():
        for head in (policy.actor_head, policy.critic_head) if std else ():
            for parameter in head.parameters():
                parameter.normal_(std=std)
    return policy


def weights_of(policy):
    """A copy of all parameters, in a vector."""
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


@contextmanager
def collecting(config, policy, frames=0):
    """A collector, which is shut down in the end."""
    collector = make_collector(config, policy, frames)
    try:
        yield collector
    finally:
        collector.shutdown()


def rollouts(config, policy, count=1):
    """One rollout after the other, each with the weights of then."""
    with collecting(config, policy) as collector:
        for _ in range(count):
            yield collector.collect()


def collected(config, std=0.0):
    """A fresh policy and its first rollout."""
    policy = fresh_policy(config, std)
    return policy, *rollouts(config, policy)


def with_rollouts(config, count, std=0.0):
    """The algorithm of a configuration with a fresh policy, and its rollouts, each with the weights of then."""
    policy = fresh_policy(config, std)
    return make_algorithm(config, policy), rollouts(config, policy, count)


def assert_replays(policy, slices):
    """What the update sees is what the rollout saw: the same log-probabilities and values."""
    with torch.no_grad():
        output = policy.sequence(*policy.inputs(slices))
    log_prob = output.distribution.log_prob(slices[ACTION])
    torch.testing.assert_close(log_prob, slices[LOG_PROB], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(output.value, slices[VALUE], rtol=1e-5, atol=1e-5)


def with_rollout(config):
    """The algorithm of a configuration with a fresh policy, and its first rollout."""
    policy, rollout = collected(config)
    return make_algorithm(config, policy), rollout


def acted(agent, steps):
    """Lets an agent act in a new environment: yields each action with the observation, reward and flags that follow."""
    env, state = agent.make_env(), agent.initial_state()
    observation, info = env.reset()
    for _ in range(steps):
        assert env.observation_space.contains(observation)
        action, state = agent.act(observation, state, action_mask=info.get("action_mask"))
        assert env.action_space.contains(action)
        observation, *results, info = env.step(action)
        yield action, observation, *results
