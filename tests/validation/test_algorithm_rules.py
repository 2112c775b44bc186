"""Options of an algorithm: refused with another one, and needed by their own."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("critic_coeff", 0.5, "has no critic"),
        ("critic", "recurrent", "has no critic"),
        ("lmbda", 0.9, "has no critic"),
        ("clip_value", 0.2, "has no critic"),
        ("objective", "kl", "has one objective"),
    ],
)
def test_grpo_refuses_an_option_of_ppo(refused, key, value, reason):
    assert refused("algorithm=grpo", f"algorithm.{key}={value}") == (
        f"algorithm.{key}={value} is an option of algorithm=ppo, but algorithm=grpo {reason}. Leave it out, or choose "
        "algorithm=ppo."
    )


def test_ppo_refuses_an_option_of_grpo(refusal):
    assert refusal({"algorithm.group_size": 8}) == (
        "algorithm.group_size=8 is an option of algorithm=grpo, but algorithm=ppo forms no groups. Leave it out, or "
        "choose algorithm=grpo."
    )


def test_an_option_that_its_algorithm_needs_cannot_be_null(refusal):
    assert refusal({"algorithm.critic_coeff": None}) == (
        "algorithm.critic_coeff is null, but algorithm=ppo needs it. Give a value, or leave it out."
    )
