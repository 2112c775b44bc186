"""What follows from the values of a configuration."""


def test_rows_iterations_and_schedules_follow_from_the_batch(compose):
    config = compose("total_frames=100", "frames_per_batch=48", "env.num_envs=4", "slice_len=6")
    assert (config.steps_per_row, config.iterations) == (12, 2)
    assert [config.progress(frames) for frames in (0, 48, 96)] == [0.0, 0.48, 0.48]
    longer = compose("total_frames=100", "frames_per_batch=20", "env.num_envs=4", "slice_len=5", "schedule_frames=60")
    assert [longer.progress(frames) for frames in (0, 20, 40, 60, 80)] == [0.0, 20 / 60, 40 / 60, 40 / 60, 40 / 60]
