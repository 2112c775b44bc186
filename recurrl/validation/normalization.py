"""Normalisation of rewards, and what the algorithm asks of the numbers of frames."""

from __future__ import annotations

from recurrl.config import TrainConfig
from recurrl.errors import require


def check(config: TrainConfig) -> None:
    """Rejects a reward scale that normalisation cancels, and numbers of frames that do not suit the algorithm."""
    scale = config.env.reward_scale
    require(
        scale == 1 or not config.env.normalize_reward,
        f"env.reward_scale={scale:g} has no effect with env.normalize_reward=true, which divides it out again. Give "
        "env.reward_scale=1, or env.normalize_reward=false.",
    )
    config.algorithm.check(config.minibatch_slices * config.slice_len, config.frames_per_batch)
