"""Groups of environments that start alike: what parts them is refused."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("size", "envs", "error"),
    [
        (
            3,
            16,
            "algorithm.group_size=3 does not divide env.num_envs=16, so the environments do not form groups. Give one "
            "of: 2, 4, 8, 16.",
        ),
        (1, 16, "algorithm.group_size=1 leaves an episode nothing to be compared with. Give one of: 2, 4, 8, 16."),
        (
            8,
            1,
            "algorithm.group_size=8 does not divide env.num_envs=1, so the environments do not form groups. Give a "
            "larger env.num_envs.",
        ),
    ],
)
def test_groups_that_do_not_fit_the_environments_are_refused(refused, size, envs, error):
    assert refused("experiment=cartpole_grpo", f"algorithm.group_size={size}", f"env.num_envs={envs}") == error


def test_rows_that_begin_with_a_reset_and_are_shorter_than_an_episode_are_refused(refused):
    assert refused("algorithm=grpo") == (
        "With algorithm=grpo every row begins with a reset, and rows have 32 steps (frames_per_batch / env.num_envs), "
        "but an episode of CartPole-v1 may have 500: later steps would never be seen. Give frames_per_batch=16000, "
        "and a slice_len that divides 500; or, if shorter episodes are meant, env.max_episode_steps=32."
    )


def test_groups_are_refused_where_workers_reset_on_their_own(refused):
    assert refused("algorithm=grpo", "collector=multi_sync", "frames_per_batch=8_000", "slice_len=25") == (
        "algorithm=grpo compares episodes of environments that are reset together, but the workers of "
        "collector=multi_sync reset independently. Choose collector=single, or algorithm=ppo."
    )


def test_groups_are_refused_where_environments_share_their_random_numbers(recurrl_train, tmp_path):
    outcome = recurrl_train(
        *("algorithm=grpo", "env=t_maze", "env.num_envs=8", "algorithm.group_size=4", "frames_per_batch=400"),
        *("slice_len=25", "minibatch_slices=4"),
        cwd=tmp_path,
    )
    assert outcome.error.startswith("algorithm=grpo needs the episodes of a group to start from the same state")
