"""Normalisation that would have no effect, or no meaning, is refused."""

from __future__ import annotations

import pytest
from changes import changed

ONE_FRAME_A_MINIBATCH = {"slice_len": 1, "minibatch_slices": 1}
ONE_FRAME_A_BATCH = {**ONE_FRAME_A_MINIBATCH, "env.num_envs": 1, "frames_per_batch": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"env.reward_scale": 0.1},
            "env.reward_scale=0.1 has no effect with env.normalize_reward=true, which divides it out again. Give "
            "env.reward_scale=1, or env.normalize_reward=false.",
        ),
        (
            {**ONE_FRAME_A_MINIBATCH, "algorithm.normalize_advantage": "minibatch"},
            "algorithm.normalize_advantage=minibatch needs the standard deviation of a minibatch's advantages, but a "
            "minibatch has one frame. Give a larger minibatch_slices or slice_len, or "
            "algorithm.normalize_advantage=none.",
        ),
        (
            {**ONE_FRAME_A_BATCH, "algorithm.normalize_advantage": "batch"},
            "algorithm.normalize_advantage=batch needs the standard deviation of a batch's advantages, but a batch "
            "has one frame. Give a larger frames_per_batch, or algorithm.normalize_advantage=none.",
        ),
    ],
    ids=changed,
)
def test_normalisation_that_cannot_do_what_was_asked_is_refused(refusal, changes, message):
    assert refusal(changes) == message


@pytest.mark.parametrize(
    "changes",
    [
        {"env.normalize_reward": True, "env.reward_scale": 1.0},
        {"env.normalize_reward": False, "env.reward_scale": 0.5},
        {"slice_len": 2, "minibatch_slices": 1, "algorithm.normalize_advantage": "minibatch"},
        {"slice_len": 1, "minibatch_slices": 2, "algorithm.normalize_advantage": "minibatch"},
        {**ONE_FRAME_A_MINIBATCH, "algorithm.normalize_advantage": "batch"},
        ONE_FRAME_A_BATCH,
    ],
    ids=changed,
)
def test_what_such_a_refusal_advises_is_fine(checked, changes):
    checked(changes)
