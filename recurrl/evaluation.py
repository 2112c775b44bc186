"""What a policy is worth: whole episodes with its most probable actions."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, pstdev

import torch
from torchrl.envs import ExplorationType, set_exploration_type

from recurrl.config import EnvConfig
from recurrl.envs import EPISODE_RETURN, make_env
from recurrl.policy import ActorCritic

# Added to the run's seed, so that evaluation does not replay the episodes the policy learnt from.
SEED_OFFSET = 1_000_003


@torch.no_grad()
def evaluate(config: EnvConfig, policy: ActorCritic, episodes: int, seed: int) -> list[float]:
    """Undiscounted, unscaled returns of ``episodes`` deterministic episodes.

    Each episode has an environment of its own and counts once, so that short episodes are not counted more often than
    long ones.
    """
    device = next(policy.parameters()).device
    acting = policy.acting()
    env = make_env(replace(config, vectorization="inline"), episodes, seed + SEED_OFFSET, policy)
    returns: list[float | None] = [None] * episodes
    try:
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            current = env.reset()
            while None in returns:
                acted = acting(current.to(device)).to(env.device)
                stepped, current = env.step_and_maybe_reset(acted)
                for i in stepped["next", "done"].flatten().nonzero().flatten().tolist():
                    if returns[i] is None:
                        returns[i] = float(stepped["next", EPISODE_RETURN][i])
    finally:
        env.close()
    return [value for value in returns if value is not None]


def evaluation_metrics(returns: list[float]) -> dict[str, float]:
    """What to log of an evaluation."""
    return {
        "eval/return_mean": fmean(returns),
        "eval/return_std": pstdev(returns),
        "eval/episodes": float(len(returns)),
    }
