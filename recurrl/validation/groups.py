"""Groups of environments that start from the same state and are compared."""

from __future__ import annotations

from recurrl.config import TrainConfig, WorkersConfig
from recurrl.errors import require
from recurrl.validation.advice import divisors


def check(config: TrainConfig) -> None:
    """Rejects groups that do not fit the environments, and workers that would split them."""
    size, envs = config.algorithm.members_of_a_group, config.env.num_envs
    if size is None:
        return
    fitting = [divisor for divisor in divisors(envs) if divisor > 1]
    advice = f"Give one of: {', '.join(map(str, fitting))}." if fitting else "Give a larger env.num_envs."
    require(size >= 2, f"algorithm.group_size={size} leaves an episode nothing to be compared with. {advice}")
    require(
        envs % size == 0,
        f"algorithm.group_size={size} does not divide env.num_envs={envs}, so the environments do not form groups. "
        f"{advice}",
    )
    require(
        not isinstance(config.collector, WorkersConfig),
        f"algorithm={config.algorithm.name} compares episodes of environments that are reset together, but the workers "
        f"of collector={config.collector.name} reset independently. Choose collector=single, or algorithm=ppo.",
    )
