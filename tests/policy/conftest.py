"""Small configurations of the tiny tasks, and batches collected with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import nn

from recurrl.build import make_collector, make_policy_for, set_process_state
from recurrl.config import TrainConfig
from recurrl.policy import OBSERVATION, Policy


@pytest.fixture(scope="session")
def small(small: Callable[..., TrainConfig]) -> Callable[..., TrainConfig]:
    """The small configuration with rows of two slices of eight steps."""
    return lambda *overrides: small("backend=reference", "frames_per_batch=64", "slice_len=8", "epochs=1", *overrides)


@pytest.fixture(scope="session")
def configure(small: Callable[..., TrainConfig]) -> Callable[..., TrainConfig]:
    """A small configuration of one of the tasks; ``kwargs`` are the task's arguments."""

    def configure(env_id: str, *overrides: str, **kwargs: Any) -> TrainConfig:
        # The package of tasks is also imported in the processes of parallel environments.
        config = small("env=gym", "env.packages=[tasks]", f"env.id={env_id}", *overrides)
        config.env.kwargs = kwargs
        return config

    return configure


@pytest.fixture(scope="session")
def collect() -> Callable[[TrainConfig], tuple[Policy, TensorDictBase]]:
    """The policy of a configuration, its heads far from zero so that a wrong input shows, and its second batch."""

    def collect(config: TrainConfig) -> tuple[Policy, TensorDictBase]:
        set_process_state(config)
        policy = make_policy_for(config)
        with torch.no_grad():
            for head in (policy.actor_head, policy.critic_head):
                assert isinstance(head, nn.Module)
                for parameter in head.parameters():
                    parameter.normal_(std=0.5)
        collector = make_collector(config, policy)
        collect = collector.collect
        policy.observe(collect()[OBSERVATION])
        batch = collect().clone()
        collector.shutdown()
        return policy, batch

    return collect
