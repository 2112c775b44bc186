"""The frames of an iteration: split evenly into environments, slices and minibatches."""

from __future__ import annotations

from recurrl.config import TrainConfig
from recurrl.errors import require
from recurrl.validation.advice import divisors, nearest_multiple


def check(config: TrainConfig) -> None:
    """Rejects numbers of frames, steps and slices that do not divide evenly."""
    envs, frames, steps = config.env.num_envs, config.frames_per_batch, config.steps_per_row
    require(
        frames % envs == 0,
        f"frames_per_batch={frames} is not a multiple of env.num_envs={envs}. Give a multiple of {envs}, for example "
        f"frames_per_batch={nearest_multiple(frames, envs)}.",
    )
    require(
        config.slice_len <= steps,
        f"slice_len={config.slice_len} is longer than a row, which has {steps} steps (frames_per_batch / "
        f"env.num_envs). Give slice_len={steps} or a divisor of it, or a larger frames_per_batch.",
    )
    require(
        steps % config.slice_len == 0,
        f"slice_len={config.slice_len} does not divide a row of {steps} steps. Give one of: "
        f"{', '.join(map(str, divisors(steps)))}.",
    )
    slices = config.slices_per_batch
    require(
        slices % config.minibatch_slices == 0,
        f"minibatch_slices={config.minibatch_slices} does not divide the {slices} slices of an iteration "
        f"(frames_per_batch / slice_len). Give one of: {', '.join(map(str, divisors(slices)))}.",
    )
    for key in ("total_frames", "schedule_frames"):
        number = getattr(config, key)
        require(
            number is None or number >= frames,
            f"{key}={number} is less than one iteration of frames_per_batch={frames}. Give a larger {key} or a smaller "
            "frames_per_batch.",
        )
