"""Evaluation of a policy: complete episodes with its most probable actions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, pstdev
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import EnvBase, ExplorationType, set_exploration_type

from recurrl.config import EnvConfig
from recurrl.envs import EPISODE_RETURN, act_at_random, make_env
from recurrl.policy import Policy, PolicyModule

# Added to the run's seed, so that evaluation does not replay the episodes the policy learnt from.
SEED_OFFSET = 1_000_003

MOST_STEPS = 100_000
"""Episodes that have not ended by then count with the return they have: one without a limit may never end."""
MOST_RANDOM_STEPS = 10_000
"""Likewise with random actions, which may never reach what ends an episode."""

logger = logging.getLogger(__name__)

# The recurrent states between two steps of an evaluation: the policy's own, zeros, or those of another episode.
KEPT, ZEROED, SHUFFLED = "kept", "zeroed", "shuffled"


class StoppedError(Exception):
    """The evaluation was asked to end."""


def never() -> bool:
    """The default for ``stopped``."""
    return False


@torch.no_grad()
def evaluate(
    config: EnvConfig,
    policy: Policy,
    episodes: int,
    seed: int,
    states: str = KEPT,
    stopped: Callable[[], bool] = never,
) -> list[float]:
    """Undiscounted, unscaled returns of ``episodes`` deterministic episodes.

    Each episode has its own environment and counts once, so that short episodes are not counted more often than long
    ones.

    Args:
        config: the environment.
        policy: acts on its own device.
        episodes: how many.
        seed: of the environments, to which an offset is added.
        states: ``kept`` is the policy as it is. ``zeroed`` sets its recurrent states to zero before each step.
            ``shuffled`` gives each environment the states of another one, of which there are at least two.
        stopped: called before each step; True ends the evaluation.

    Raises:
        StoppedError: ``stopped`` said so.
        RunError: an environment failed.
    """
    with _random_numbers_kept():
        return _returns(config, policy, episodes, seed, states, stopped)


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """Isolates training from evaluation, so that it depends neither on its timing nor on its repetition on resume."""
    state = GlobalRNGState().state_dict()
    try:
        yield
    finally:
        GlobalRNGState().load_state_dict(state)


def _returns(
    config: EnvConfig, policy: Policy | None, episodes: int, seed: int, states: str, stopped: Callable[[], bool]
) -> list[float]:
    """Those of a policy, or without one of random actions."""
    act = act_at_random if policy is None else _deterministic(policy, states, seed)
    most_steps = MOST_RANDOM_STEPS if policy is None else MOST_STEPS
    copies = max(episodes, 2) if states == SHUFFLED else episodes
    env = make_env(config, copies, seed + SEED_OFFSET, policy)
    returns: list[float | None] = [None] * copies
    try:
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            current = env.reset()
            for _ in range(most_steps):
                if stopped():
                    raise StoppedError
                stepped, current = env.step_and_maybe_reset(act(env, current))
                for i in stepped["next", "done"].flatten().nonzero().flatten().tolist():
                    if returns[i] is None:
                        returns[i] = float(stepped["next", EPISODE_RETURN][i])
                if None not in returns[:episodes]:
                    break
            else:
                _warn_of_endless(config, returns[:episodes].count(None), episodes, most_steps)
                returns = [stepped["next", EPISODE_RETURN][i].item() if r is None else r for i, r in enumerate(returns)]
    finally:
        env.close()
    return [value for value in returns[:episodes] if value is not None]


def _deterministic(policy: Policy, states: str, seed: int) -> Callable[[EnvBase, TensorDictBase], TensorDictBase]:
    device, acting = next(policy.parameters()).device, PolicyModule(policy)
    generator = torch.Generator().manual_seed(seed)

    def act(env: EnvBase, current_N: TensorDictBase) -> TensorDictBase:
        _disturb(current_N, policy.state_keys, states, generator)
        acted: TensorDictBase = acting(current_N.to(device)).to(env.device)
        return acted

    return act


def _warn_of_endless(config: EnvConfig, endless: int, episodes: int, most_steps: int) -> None:
    logger.warning(
        "%d of %d evaluation episodes of %s had not ended after %d steps; their returns so far are counted. Give "
        "env.max_episode_steps.",
        *(endless, episodes, config.id, most_steps),
    )


def _disturb(current_N: TensorDictBase, keys: Sequence[Any], states: str, generator: torch.Generator) -> None:
    if states == ZEROED:
        for key in keys:
            current_N[key] = torch.zeros_like(current_N[key])
    elif states == SHUFFLED:
        count = current_N.batch_size[0]
        # A rotation: each environment gets another one's states, and all states of one environment stay together.
        by = int(torch.randint(1, count, (), generator=generator))
        for key in keys:
            current_N[key] = current_N[key].roll(by, 0)


def memory_metrics(
    config: EnvConfig, policy: Policy, episodes: int, seed: int, stopped: Callable[[], bool] = never
) -> dict[str, float]:
    """The returns without the policy's memory: in the same episodes with its states zeroed, and shuffled.

    A policy that uses its memory does worse without; one that does not returns the same. Empty for a policy that has
    none.
    """
    if not policy.state_keys:
        return {}
    return {
        f"eval/return_mean_{states}_state": fmean(evaluate(config, policy, episodes, seed, states, stopped))
        for states in (ZEROED, SHUFFLED)
    }


@torch.no_grad()
def random_metrics(
    config: EnvConfig, episodes: int, seed: int, stopped: Callable[[], bool] = never
) -> dict[str, float]:
    """The baseline: the returns of random actions in the environments of the evaluation."""
    with _random_numbers_kept():
        torch.manual_seed(seed)
        returns = _returns(config, None, episodes, seed, KEPT, stopped)
    return {"eval/return_mean_random": fmean(returns), "eval/return_std_random": pstdev(returns)}


def evaluation_metrics(returns: list[float]) -> dict[str, float]:
    """The metrics of an evaluation."""
    return {
        "eval/return_mean": fmean(returns),
        "eval/return_std": pstdev(returns),
        "eval/episodes": float(len(returns)),
    }
