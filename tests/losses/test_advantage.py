"""Advantages against a plain-Python definition that knows terminations and truncations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from recurrl.build import make_collector, make_policy_for
from recurrl.config import TrainConfig
from recurrl.losses.advantage import ADVANTAGE, VALUE_TARGET, add_advantages, next_values
from recurrl.policy import Policy

Compose = Callable[..., TrainConfig]

GAMMA, LMBDA = 0.9, 0.8
CONTINUES, TERMINATED, TRUNCATED = range(3)


def plain_advantages(
    rewards: list[float], values: list[float], bootstraps: list[float], ends: list[int]
) -> list[float]:
    """One row, from the definition: A_t = Σ (γλ)^k δ_{t+k}, within the episode."""
    advantages = [0.0] * len(rewards)
    following = 0.0
    for t in reversed(range(len(rewards))):
        last_of_row = t == len(rewards) - 1
        if ends[t] == TERMINATED:
            next_value = 0.0
        elif ends[t] == TRUNCATED or last_of_row:
            next_value = bootstraps[t]
        else:
            next_value = values[t + 1]
        if ends[t] != CONTINUES:
            following = 0.0
        following = rewards[t] + GAMMA * next_value - values[t] + GAMMA * LMBDA * following
        advantages[t] = following
    return advantages


class ValueOfObservation:
    """Stands in for a policy: the value of an observation is the observation."""

    state_keys: tuple[str, ...] = ()

    def step(self, observation: torch.Tensor, *_: object, deterministic: bool) -> tuple[None, None, torch.Tensor, None]:
        return None, None, observation, None


@settings(max_examples=200, deadline=None)
@given(data=st.data(), rows=st.integers(1, 4), steps=st.integers(1, 12))
def test_advantages_equal_the_definition(data: st.DataObject, rows: int, steps: int) -> None:
    count = rows * steps
    numbers = st.lists(st.floats(-5, 5, width=32), min_size=count, max_size=count)
    rewards, values, afters = (torch.tensor(data.draw(numbers)).double().reshape(rows, steps) for _ in range(3))
    kinds = st.lists(st.sampled_from((CONTINUES, TERMINATED, TRUNCATED)), min_size=count, max_size=count)
    ends = torch.tensor(data.draw(kinds)).reshape(rows, steps)
    batch = TensorDict(
        {
            "state_value": values.unsqueeze(-1),
            "next": {
                "observation": afters.unsqueeze(-1),
                "done": (ends != CONTINUES).unsqueeze(-1),
                "terminated": (ends == TERMINATED).unsqueeze(-1),
            },
        },
        [rows, steps],
    )
    add_advantages(batch, ValueOfObservation(), rewards, GAMMA, LMBDA)  # type: ignore[arg-type]
    expected = torch.tensor(
        [plain_advantages(*row) for row in zip(*(x.tolist() for x in (rewards, values, afters, ends)), strict=True)],
        dtype=torch.float64,
    )
    torch.testing.assert_close(batch[ADVANTAGE].squeeze(-1), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(batch[VALUE_TARGET].squeeze(-1), expected + values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("cell", ["gru", "lstm", "none"])
def test_the_bootstrap_is_the_critics_value_of_what_followed(cell: str, compose: Compose) -> None:
    """Truncations, row ends and terminations in one batch; each next value against a call of its own."""
    config = compose(
        f"cell={cell}",
        "cell.hidden_size=8",
        "env.num_envs=4",
        "frames_per_batch=256",
        "slice_len=16",
        "minibatch_slices=4",
        "env.max_episode_steps=13",
    )
    torch.manual_seed(0)
    policy = make_policy_for(config)
    shift_state(policy)
    collector = make_collector(config, policy)
    batch = next(iter(collector))
    collector.shutdown()
    found = next_values(batch, policy).squeeze(-1)
    after = batch["next"]
    kinds = {"truncated": 0, "terminated": 0, "row end": 0, "within": 0}
    for row in range(batch.shape[0]):
        for t in range(batch.shape[1]):
            step = after[row, t]
            if step["terminated"].item():
                kinds["terminated"] += 1
                assert found[row, t] == 0
                continue
            state = {key: step[key].unsqueeze(0) for key in policy.state_keys}
            with torch.no_grad():
                _, _, expected, _ = policy.step(step["observation"].unsqueeze(0), state)
            torch.testing.assert_close(found[row, t], expected.squeeze(), rtol=1e-5, atol=1e-6)
            kinds["truncated" if step["done"].item() else "row end" if t == batch.shape[1] - 1 else "within"] += 1
    assert min(kinds.values()) > 0, kinds


def shift_state(policy: Policy) -> None:
    """Heads near zero would hide a wrong state: spread the values out."""
    with torch.no_grad():
        for parameter in policy.critic_head.parameters():
            parameter.normal_()
