"""Policies of the tiny tasks, as agents."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parent.parent / "policy"))  # the tasks

from recurrl.agent import Agent
from recurrl.build import make_policy_for
from recurrl.config import TrainConfig


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small networks are fastest with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def agent_of(small: Callable[..., TrainConfig]) -> Callable[..., tuple[Agent, TrainConfig]]:
    """A policy whose heads are far from zero and whose statistics have seen something, as an agent."""

    def agent_of(env_id: str, *overrides: str, **kwargs: Any) -> tuple[Agent, TrainConfig]:
        config = small("env=gym", "env.packages=[tasks]", f"env.id={env_id}", "encoder.images=impala", *overrides)
        config.env.kwargs = kwargs
        torch.manual_seed(3)
        policy = make_policy_for(config)
        with torch.no_grad():
            for parameter in policy.actor_head.parameters():
                parameter.normal_(std=0.5)
            for module in policy.modules():
                if hasattr(module, "replaced_at"):
                    module.mean.normal_()
                    module.scale.uniform_(0.5, 2)
        return Agent(policy, config.env), config

    return agent_of
