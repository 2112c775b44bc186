"""Collection that goes on in another process as if nothing had happened."""

from __future__ import annotations

import io

import pytest
import torch
from tensordict import TensorDictBase

from recurrl.collector import make_collector
from recurrl.collector.carry import Carry
from recurrl.config import TrainConfig
from recurrl.environment_state import UnsavableError
from recurrl.train import make_policy_for, set_process_state

SMALL = ("env.num_envs=4", "frames_per_batch=64", "slice_len=8", "minibatch_slices=8", "cell.hidden_size=4")
CASES = {
    "cartpole": (),
    "pendulum": ("env=pendulum_novel", "cell=lstm"),
    "vector environment": ("env.vectorization=vector_entry_point", "env.max_episode_steps=9"),
    "repeat_first": ("env=repeat_first",),
    "without memory": ("cell=none",),
    "previous action": ("env.previous_action=true", "env.previous_reward=true"),
    "torchrl's path": ("policy.bounded_action=tanh", "env=pendulum_novel"),
    "in torch": ("env=repeat_previous_torch",),
    "groups": ("algorithm=grpo", "algorithm.group_size=2", "env.max_episode_steps=10"),
}


def batches(
    config: TrainConfig, count: int, state: io.BytesIO | None = None
) -> tuple[list[TensorDictBase], io.BytesIO]:
    """Of a new collector, from its beginning or from a state; and the state it leaves."""
    set_process_state(config)
    collector = make_collector(config, make_policy_for(config))
    try:
        carry = Carry(collector)
        if state is not None:
            state.seek(0)
            loaded = torch.load(state, weights_only=True)
            carry.load_state_dict(loaded["carry"])
            torch.set_rng_state(loaded["rng"])
        found = [batch.clone() for _, batch in zip(range(count), collector, strict=False)]
        left = io.BytesIO()
        torch.save({"carry": carry.state_dict(), "rng": torch.get_rng_state()}, left)
    finally:
        collector.shutdown()
    return found, left


@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES.keys())
def test_a_restored_collector_goes_on_as_the_one_that_was_saved(overrides, compose):
    config = compose(*SMALL, *overrides)
    (*_, expected), _ = batches(config, 3)
    _, state = batches(config, 2)
    (found,), _ = batches(config, 1, state)
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key, value in expected.items(True, True):
        torch.testing.assert_close(found[key], value, rtol=0, atol=0, msg=str(key))


def test_episodes_that_cannot_be_saved_begin_anew_and_that_is_said(compose, caplog):
    config = compose(*SMALL, "env.vectorization=serial")
    _, state = batches(config, 1)
    (found,), _ = batches(config, 1, state)
    assert found["is_init"][:, 0].all()
    assert "The episodes that were under way begin anew: TorchRL's SerialEnv does not give the state" in caplog.text


def test_the_state_of_another_number_of_environments_does_not_fit(compose):
    _, state = batches(compose(*SMALL), 1)
    with pytest.raises(UnsavableError, match="4 environments were saved, and 8 are here"):
        batches(compose(*SMALL, "env.num_envs=8"), 1, state)
