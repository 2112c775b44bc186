"""What a policy is worth: whole episodes with its most probable actions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.envs import ExplorationType, set_exploration_type

from recurrl.config import EnvConfig
from recurrl.envs import EPISODE_RETURN, in_this_process, make_env
from recurrl.policy import Policy, PolicyModule

# Added to the run's seed, so that evaluation does not replay the episodes the policy learnt from.
SEED_OFFSET = 1_000_003

MOST_STEPS = 100_000
"""Episodes that have not ended by then count with the return they have: one without a limit may never end."""

logger = logging.getLogger(__name__)

# What becomes of the recurrent states between two steps of an evaluation: with either of the latter two the policy has
# to do without its memory, or with another episode's.
KEPT, ZEROED, SHUFFLED = "kept", "zeroed", "shuffled"


@torch.no_grad()
def evaluate(config: EnvConfig, policy: Policy, episodes: int, seed: int, states: str = KEPT) -> list[float]:
    """Undiscounted, unscaled returns of ``episodes`` deterministic episodes.

    Each episode has an environment of its own and counts once, so that short episodes are not counted more often than
    long ones.

    Args:
        config: the environment.
        policy: acts on its own device.
        episodes: how many.
        seed: of the environments, to which an offset is added.
        states: ``kept`` is the policy as it is. ``zeroed`` sets its recurrent states to zero before each step.
            ``shuffled`` gives each environment the states of another one, of which there are at least two.
    """
    # Seeding environments seeds torch as well, and what is trained must not depend on when it is evaluated.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        return _returns(config, policy, episodes, seed, states)


def _returns(config: EnvConfig, policy: Policy, episodes: int, seed: int, states: str) -> list[float]:
    device = next(policy.parameters()).device
    acting = PolicyModule(policy)
    copies = max(episodes, 2) if states == SHUFFLED else episodes
    env = make_env(in_this_process(config), copies, seed + SEED_OFFSET, policy)
    generator = torch.Generator().manual_seed(seed)
    returns: list[float | None] = [None] * copies
    try:
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            current = env.reset()
            for _ in range(MOST_STEPS):
                _disturb(current, policy.state_keys, states, generator)
                acted = acting(current.to(device)).to(env.device)
                stepped, current = env.step_and_maybe_reset(acted)
                for i in stepped["next", "done"].flatten().nonzero().flatten().tolist():
                    if returns[i] is None:
                        returns[i] = float(stepped["next", EPISODE_RETURN][i])
                if None not in returns[:episodes]:
                    break
            else:
                _warn_of_endless(config, returns[:episodes].count(None), episodes)
                returns = [stepped["next", EPISODE_RETURN][i].item() if r is None else r for i, r in enumerate(returns)]
    finally:
        env.close()
    return [value for value in returns[:episodes] if value is not None]


def _warn_of_endless(config: EnvConfig, endless: int, episodes: int) -> None:
    logger.warning(
        "%d of %d evaluation episodes of %s had not ended after %d steps, and count with the return they had by then. "
        "Give env.max_episode_steps.",
        *(endless, episodes, config.id, MOST_STEPS),
    )


def _disturb(current_N: TensorDictBase, keys: Sequence[Any], states: str, generator: torch.Generator) -> None:
    if states == ZEROED:
        for key in keys:
            current_N[key] = torch.zeros_like(current_N[key])
    elif states == SHUFFLED:
        count = current_N.batch_size[0]
        # A rotation: everybody has somebody else's states, and all states of one environment stay together.
        by = int(torch.randint(1, count, (), generator=generator))
        for key in keys:
            current_N[key] = current_N[key].roll(by, 0)


def memory_metrics(config: EnvConfig, policy: Policy, episodes: int, seed: int) -> dict[str, float]:
    """What the policy's memory is worth: its returns in the same episodes with its states zeroed, and shuffled.

    A policy that uses its memory does worse without; one that does not returns the same. Empty for a policy that has
    none.
    """
    if not policy.state_keys:
        return {}
    return {
        f"eval/return_mean_{states}_state": fmean(evaluate(config, policy, episodes, seed, states))
        for states in (ZEROED, SHUFFLED)
    }


def evaluation_metrics(returns: list[float]) -> dict[str, float]:
    """What to log of an evaluation."""
    return {
        "eval/return_mean": fmean(returns),
        "eval/return_std": pstdev(returns),
        "eval/episodes": float(len(returns)),
    }
