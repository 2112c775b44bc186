"""The options of an algorithm: set where required, and null elsewhere."""

from __future__ import annotations

from recurrl.config import TrainConfig
from recurrl.errors import ConfigError, require

CRITIC_OPTIONS = ("critic", "lmbda", "critic_coeff", "critic_loss", "clip_value", "normalize_advantage")
PPO_OPTIONS = ("objective", "kl_coeff", *CRITIC_OPTIONS)
GRPO_OPTIONS = (
    *("group_size", "advantage", "divide_by_std", "drop_flat_groups", "aggregation"),
    *("kl_to_ref_coeff", "ref_refresh_updates", "kl_to_inference_coeff", "kl_mask_threshold"),
)
MAY_BE_NULL = ("clip_value", "ref_refresh_updates", "kl_mask_threshold")


def check(config: TrainConfig) -> None:
    """Rejects options that belong to the other algorithm, and missing ones of this one."""
    algorithm = config.algorithm
    own = {"ppo": PPO_OPTIONS, "grpo": GRPO_OPTIONS}.get(algorithm.name, PPO_OPTIONS)
    for key in PPO_OPTIONS + GRPO_OPTIONS:
        value = getattr(algorithm, key)
        if key in own:
            require(
                value is not None or key in MAY_BE_NULL,
                f"algorithm.{key} is null, but algorithm={algorithm.name} needs it. Give a value, or leave it out.",
            )
        elif value is not None:
            other, reason = ("ppo", "has no critic") if algorithm.name == "grpo" else ("grpo", "forms no groups")
            reason = reason if key in CRITIC_OPTIONS or other == "grpo" else "has one objective"
            raise ConfigError(
                f"algorithm.{key}={value} is an option of algorithm={other}, but algorithm={algorithm.name} {reason}. "
                f"Leave it out, or choose algorithm={other}."
            )
