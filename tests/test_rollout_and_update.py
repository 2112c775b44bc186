"""Right before fast: what the update sees is what the rollout saw.

Log-probabilities and values recomputed from slices equal those of collection, across resets, truncations, the ends of
batches and slices; and the first update does not depend on the backend.
"""

import pytest
import torch
from collected import assert_replays, fresh_policy, rollouts, weights_of

from recurrl.buffers.on_policy import SliceBuffer
from recurrl.build import make_algorithm
from recurrl.policy import OBSERVATION

OPTIONS = (
    *("cell.hidden_size=12", "encoder.sizes=[16]", "env.num_envs=6", "frames_per_batch=240"),
    *("slice_len=8", "minibatch_slices=6", "env.max_episode_steps=17"),
)


CARTPOLES = [(backend, "cartpole_no_velocity") for backend in ("reference", "pad", "scan", "triton")]


@pytest.mark.parametrize(("backend", "env"), [("pad", "pendulum_no_velocity"), *CARTPOLES])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_replayed_log_probs_and_values_equal_the_rollouts(cell, backend, env, small):
    config = small(f"env={env}", f"cell={cell}", f"backend={backend}", "cell.num_layers=2", *OPTIONS)
    policy = fresh_policy(config, std=0.5)
    buffer = SliceBuffer(config.buffer, config.slice_len, config.minibatch_slices)
    resets = mid_slice = 0
    for batch in rollouts(config, policy, 3):  # episodes run on from batch to batch
        for minibatch in buffer.minibatches(batch):
            resets += int(minibatch["is_init"].sum())
            mid_slice += int((~minibatch["is_init"][:, 0]).sum())
            assert_replays(policy, minibatch)
        policy.observe(batch[OBSERVATION])
    assert resets > 20
    assert mid_slice > 20


def test_a_state_that_is_zeroed_in_mid_episode_would_be_seen(small):
    """The test above can fail."""
    config = small(*OPTIONS)
    policy = fresh_policy(config, std=0.5)
    (batch,) = rollouts(config, policy)
    batch["recurrent_state"].zero_()
    buffer = SliceBuffer(config.buffer, config.slice_len, config.minibatch_slices)
    with pytest.raises(AssertionError, match="not close"):
        assert_replays(policy, next(buffer.minibatches(batch)))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_first_update_is_the_same_for_every_backend(cell, small):
    losses, weights = {}, {}
    for backend in ("reference", "pad", "scan", "triton"):
        config = small(f"cell={cell}", f"backend={backend}", "epochs=1", *OPTIONS)
        policy = fresh_policy(config)
        metrics = make_algorithm(config, policy).update(*rollouts(config, policy), progress=0.0)
        losses[backend] = sum(metrics[f"loss/{name}"] for name in ("objective", "critic", "entropy"))
        weights[backend] = weights_of(policy)
        assert losses[backend] == pytest.approx(losses["reference"], abs=1e-5)
        torch.testing.assert_close(weights[backend], weights["reference"], rtol=0, atol=1e-5)


def test_the_collector_acts_with_the_weights_as_they_are_now(small):
    config = small(*OPTIONS, "lr=0.05")
    policy = fresh_policy(config, std=0.5)
    learner = make_algorithm(config, policy)
    for batch in rollouts(config, policy, 3):
        assert_replays(policy, batch)
        learner.update(batch, progress=0.0)
