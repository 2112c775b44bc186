"""Right before fast: what the update sees is what the rollout saw.

Log-probabilities and values recomputed from slices equal those of collection, across resets, truncations, the ends of
batches and slices; and the first update does not depend on the backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from recurrl.buffers.on_policy import SliceBuffer
from recurrl.build import make_algorithm, make_collector, make_policy_for, set_process_state
from recurrl.config import TrainConfig
from recurrl.policy import ACTION, LOG_PROB, OBSERVATION, VALUE, Policy

Compose = Callable[..., TrainConfig]

OPTIONS = (
    "cell.hidden_size=12",
    "encoder.sizes=[16]",
    "env.num_envs=6",
    "frames_per_batch=240",
    "slice_len=8",
    "minibatch_slices=6",
    "env.max_episode_steps=17",
)


def make(config: TrainConfig) -> tuple[Policy, Any]:
    set_process_state(config)
    policy = make_policy_for(config)
    with torch.no_grad():  # far from the initial zeros, so that a wrong state shows
        for head in (policy.actor_head, policy.critic_head):
            for parameter in head.parameters():
                parameter.normal_(std=0.5)
    return policy, make_collector(config, policy)


@pytest.mark.parametrize("env", ["cartpole_no_velocity", "pendulum_no_velocity"])
@pytest.mark.parametrize("backend", ["reference", "pad", "scan", "triton"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_replayed_log_probs_and_values_equal_the_rollouts(cell: str, backend: str, env: str, small: Compose) -> None:
    config = small(f"env={env}", f"cell={cell}", f"backend={backend}", "cell.num_layers=2", *OPTIONS)
    policy, collector = make(config)
    buffer = SliceBuffer(config.buffer, config.slice_len, config.minibatch_slices)
    resets = mid_slice = 0
    for batch in (collector.collect() for _ in range(3)):  # episodes run on from batch to batch
        for minibatch in buffer.minibatches(batch):
            resets += int(minibatch["is_init"].sum())
            mid_slice += int((~minibatch["is_init"][:, 0]).sum())
            assert_replays(policy, minibatch)
        policy.observe(batch[OBSERVATION])
    collector.shutdown()
    assert resets > 20
    assert mid_slice > 20


def assert_replays(policy: Policy, minibatch: Any) -> None:
    with torch.no_grad():
        output = policy.sequence(*policy.inputs(minibatch))
    torch.testing.assert_close(
        output.distribution.log_prob(minibatch[ACTION]), minibatch[LOG_PROB], rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(output.value, minibatch[VALUE], rtol=1e-5, atol=1e-5)


def test_a_state_that_is_zeroed_in_mid_episode_would_be_seen(small: Compose) -> None:
    """The test above can fail."""
    config = small(*OPTIONS)
    policy, collector = make(config)
    batch = collector.collect()
    collector.shutdown()
    batch["recurrent_state"].zero_()
    buffer = SliceBuffer(config.buffer, config.slice_len, config.minibatch_slices)
    with pytest.raises(AssertionError, match="not close"):
        assert_replays(policy, next(buffer.minibatches(batch)))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_first_update_is_the_same_for_every_backend(cell: str, small: Compose) -> None:
    losses, weights = {}, {}
    for backend in ("reference", "pad", "scan", "triton"):
        config = small(f"cell={cell}", f"backend={backend}", "epochs=1", *OPTIONS)
        set_process_state(config)
        policy = make_policy_for(config)
        collector = make_collector(config, policy)
        metrics = make_algorithm(config, policy).update(collector.collect(), progress=0.0)
        collector.shutdown()
        losses[backend] = sum(metrics[f"loss/{name}"] for name in ("objective", "critic", "entropy"))
        weights[backend] = torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])
    for backend in ("pad", "scan", "triton"):
        assert losses[backend] == pytest.approx(losses["reference"], abs=1e-5)
        torch.testing.assert_close(weights[backend], weights["reference"], rtol=0, atol=1e-5)


def test_the_collector_acts_with_the_weights_as_they_are_now(small: Compose) -> None:
    config = small(*OPTIONS, "lr=0.05")
    policy, collector = make(config)
    collect = collector.collect
    learner = make_algorithm(config, policy)
    for _ in range(2):
        learner.update(collect(), progress=0.0)
    batch = collect()
    collector.shutdown()
    assert_replays(policy, batch.select(OBSERVATION, "is_init", ACTION, LOG_PROB, VALUE, *policy.state_keys))
