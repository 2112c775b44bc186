"""Collectors of several processes: rows, weights, staleness, errors, and what is left behind."""

import multiprocessing

import pytest
import torch
from collected import collecting, fresh_policy, rollouts
from failing_env import FAILING

from recurrl.build import make_collector
from recurrl.errors import EnvError
from recurrl.policy import VALUE

pytestmark = pytest.mark.slow
OPTIONS = ("frames_per_batch=80", "slice_len=20", "minibatch_slices=2")


def value_everything(policy, value):
    """Makes the critic say the same of every state, so that batches tell with which weights they were collected."""
    with torch.no_grad():
        policy.critic_head.weight.zero_()
        policy.critic_head.bias.fill_(value)


def make_policy(config):
    policy = fresh_policy(config)
    value_everything(policy, 0.0)
    return policy


def several(collector, count):
    for _ in range(count):
        collector.collect()


def failing(small, *overrides, **how):
    """The configuration of environments that fail so, and a policy for them."""
    harmless = small(*OPTIONS, *FAILING, *overrides, at=10**9)
    return small(*OPTIONS, *FAILING, *overrides, **how), fresh_policy(harmless)


@pytest.mark.parametrize(("collector", "ahead"), [("multi_sync", 0), ("multi_async", 1)])
def test_workers_act_with_the_newest_weights_or_those_before_in_environments_as_of_one_process(collector, ahead, small):
    config = small(*OPTIONS, f"collector={collector}")
    policy = make_policy(config)
    starts = []
    with collecting(config, policy) as workers:
        for iteration in range(6):
            batch = workers.collect()
            assert batch.batch_size == (4, 20)
            assert (batch[VALUE] == max(0, iteration - ahead)).all()
            assert workers.metrics() == ({"collect/staleness": min(iteration, 1)} if ahead else {})
            starts.append(batch["observation"][:, 0].clone())
            value_everything(policy, iteration + 1.0)
    alone = small(*OPTIONS, "collector=single")
    (batch,) = rollouts(alone, make_policy(alone))
    assert torch.equal(batch["observation"][:, 0], starts[0])


@pytest.mark.parametrize(("at", "where"), [(0, "reset"), (30, "step")])
@pytest.mark.parametrize("collector", ["multi_sync", "multi_async", "ray"])
def test_a_workers_exception_arrives_with_its_traceback_and_no_process_stays(collector, at, where, small):
    if collector == "ray":
        pytest.importorskip("ray")
    config, policy = failing(small, f"collector={collector}", "collector.num_workers=2", at=at)
    says = rf"Worker 0 of 2 \(environments 0 to 1\): Environment 0 of 2 .* raised ArmError in {where}"
    with pytest.raises(EnvError, match=says) as caught:
        several(make_collector(config, policy), 20)
    assert "in _observe" in caught.value.__notes__[0]
    for process in multiprocessing.active_children():
        process.join(timeout=5)
    assert not multiprocessing.active_children()
