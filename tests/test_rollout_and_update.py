"""The first update does not depend on the backend, and a rollout not on earlier weights.

``tests/policy/test_every_kind.py`` compares what an update sees with what the rollout saw.
"""

import pytest
import torch
from collected import assert_replays, fresh_policy, rollouts, weights_of

from recurrl.build import make_algorithm

OPTIONS = (
    *("cell.hidden_size=12", "encoder.sizes=[16]", "env.num_envs=6", "frames_per_batch=240"),
    *("slice_len=8", "minibatch_slices=6", "env.max_episode_steps=17"),
)


def test_the_first_update_is_the_same_for_every_backend(small):
    losses, weights = {}, {}
    for backend in ("reference", "pad", "scan", "triton"):
        config = small("cell=lstm", f"backend={backend}", "epochs=1", *OPTIONS)
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
