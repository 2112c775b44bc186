"""A name that does not exist is refused, with those that do."""

from __future__ import annotations

import pytest

from recurrl.config.plugins import names
from recurrl.recurrent.backends import backend_names


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("env.source", names("env")),
        ("env.vectorization", ("inline", "vector_entry_point")),
        ("algorithm.critic", ("shared", "recurrent", "feedforward")),
        ("algorithm.objective", ("clip", "kl", "plain")),
        ("algorithm.normalize_advantage", ("none", "minibatch", "batch")),
        ("lr_schedule", ("linear", "adaptive")),
        ("algorithm.critic_loss", ("l2", "smooth_l1")),
        ("backend.name", backend_names()),
        ("cell.name", ("gru", "lstm", "none")),
        ("collector.name", ("single",)),
        ("logger.name", ("csv", "tensorboard", "wandb")),
        ("logger.mode", ("auto", "online", "offline")),
        ("encoder.images", ("nature", "impala")),
        ("policy.bounded_action", ("clip", "tanh")),
        ("recompute.name", ("none", "full", "chunk")),
        ("state", ("stored", "zero", "burn_in", "refresh")),
        ("precision.name", ("ieee", "tf32", "tf32x3", "bf16", "fast", "high-prec")),
    ],
)
def test_a_value_that_is_not_among_the_choices_is_refused_with_those_that_are(refusal, key, names):
    error = refusal({key: "nonesuch"})
    assert "=nonesuch does not exist. Choose one of: " in error
    listed = error.partition("Choose one of: ")[2].rstrip(".").split(", ")
    assert set(names) <= set(listed)


@pytest.mark.parametrize(("key", "names"), [("advantage", "outcome, process"), ("aggregation", "step, episode")])
def test_a_choice_of_grpos_that_does_not_exist_is_refused(refused, key, names):
    assert refused("algorithm=grpo", f"algorithm.{key}=nonesuch") == (
        f"algorithm.{key}=nonesuch does not exist. Choose one of: {names}."
    )


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("serial", "env.vectorization=inline"),
        ("gymnasium", "env.vectorization=inline"),
        (
            "parallel",
            "collector=multi_sync collector.num_workers=N, which runs the environments in N processes",
        ),
    ],
)
def test_a_vectorization_that_was_removed_is_refused_with_what_takes_its_place(refused, name, instead):
    assert refused(f"env.vectorization={name}") == f"env.vectorization={name} was removed. Choose {instead}."
