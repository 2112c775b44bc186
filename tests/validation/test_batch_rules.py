"""Frames, rows, slices and minibatches: what does not work out is refused, with what does."""

from __future__ import annotations

import pytest
from changes import changed


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"slice_len": 64},
            "slice_len=64 is longer than a row, which has 32 steps (frames_per_batch / env.num_envs). "
            "Give slice_len=32 or a divisor of it, or a larger frames_per_batch.",
        ),
        (
            {"slice_len": 5},
            "slice_len=5 does not divide a row of 32 steps. Give one of: 1, 2, 4, 8, 16, 32.",
        ),
        (
            {"minibatch_slices": 5},
            "minibatch_slices=5 does not divide the 32 slices of an iteration (frames_per_batch / slice_len). "
            "Give one of: 1, 2, 4, 8, 16, 32.",
        ),
        (
            {"minibatch_slices": 64},
            "minibatch_slices=64 does not divide the 32 slices of an iteration (frames_per_batch / slice_len). "
            "Give one of: 1, 2, 4, 8, 16, 32.",
        ),
        (
            {"frames_per_batch": 1000},
            "frames_per_batch=1000 is not a multiple of env.num_envs=32. Give a multiple of 32, for example "
            "frames_per_batch=992.",
        ),
        (
            {"frames_per_batch": 8},
            "frames_per_batch=8 is not a multiple of env.num_envs=32. Give a multiple of 32, for example "
            "frames_per_batch=32.",
        ),
        (
            {"total_frames": 1023},
            "total_frames=1023 is less than one iteration of frames_per_batch=1024. Give a larger total_frames or a "
            "smaller frames_per_batch.",
        ),
    ],
    ids=changed,
)
def test_batches_that_do_not_work_out_are_refused_with_ones_that_do(refusal, changes, sentence):
    assert refusal(changes) == sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"slice_len": 1},
        {"slice_len": 4},
        {"minibatch_slices": 1},
        {"minibatch_slices": 32},
        {"frames_per_batch": 992, "slice_len": 31},
        {"total_frames": 1024},
    ],
    ids=changed,
)
def test_what_such_a_refusal_advises_is_fine(checked, changes):
    checked(changes)


def test_the_divisors_that_a_refusal_names_are_found_at_once_even_of_a_huge_number(refusal):
    error = refusal({"frames_per_batch": 10**12, "total_frames": 10**12, "env.num_envs": 1, "slice_len": 7})
    assert error.startswith("slice_len=7 does not divide a row of 1000000000000 steps. Give one of: 1, 2, 4, 5, 8, 10,")
