"""What follows from the values of a configuration."""

from __future__ import annotations


def test_rows_slices_and_iterations_follow_from_the_batch(compose):
    config = compose("total_frames=100", "frames_per_batch=48", "env.num_envs=4", "slice_len=6")
    assert config.steps_per_row == 12
    assert config.slices_per_batch == 8
    assert config.iterations == 2
