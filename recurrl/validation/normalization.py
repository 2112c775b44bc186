"""Normalisation of rewards and advantages."""

from __future__ import annotations

from recurrl.config import TrainConfig
from recurrl.errors import require


def check(config: TrainConfig) -> None:
    """Rejects a reward scale that normalisation cancels, and advantages normalised over a single frame."""
    scale = config.env.reward_scale
    require(
        scale == 1 or not config.env.normalize_reward,
        f"env.reward_scale={scale:g} has no effect with env.normalize_reward=true, which divides it out again. Give "
        "env.reward_scale=1, or env.normalize_reward=false.",
    )
    over = getattr(config.algorithm, "normalize_advantage", None)
    frames = {"minibatch": config.minibatch_slices * config.slice_len, "batch": config.frames_per_batch}.get(str(over))
    keys = "minibatch_slices or slice_len" if over == "minibatch" else "frames_per_batch"
    require(
        frames != 1,
        f"algorithm.normalize_advantage={over} needs the standard deviation of a {over}'s advantages, but a {over} has "
        f"one frame. Give a larger {keys}, or algorithm.normalize_advantage=none.",
    )
