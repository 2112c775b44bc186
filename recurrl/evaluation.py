"""Evaluation of a policy: complete episodes with its most probable actions."""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from statistics import fmean, pstdev
from typing import Any

import torch
from tensordict import NestedKey
from torch import Tensor
from torchrl.checkpoint import GlobalRNGState

from recurrl.config import EnvConfig
from recurrl.envs import make_batched_env
from recurrl.envs.batched import BatchedEnv, Tensors, episodes_ended, observation_in
from recurrl.envs.making import random_action
from recurrl.keys import HIDDEN
from recurrl.policy import Policy
from recurrl.policy.policy import State, StepOutput
from recurrl.runtime.seeds import seeds

# Added to the run's seed, so that evaluation does not repeat the episodes of training.
SEED_OFFSET = 1_000_003

MOST_STEPS = 100_000
"""Episodes that last longer, perhaps without an end, count with their return so far."""
MOST_RANDOM_STEPS = 10_000
"""The same with random actions."""
MOST_COPIES = 256
"""Environments that play many episodes."""

logger = logging.getLogger(__name__)

Watch = Callable[[BatchedEnv, StepOutput], None]
"""Sees the environments of an evaluation before each step, and the policy's output."""

Act = Callable[[Tensors, Tensor], Any]
"""Chooses actions for observations and episode starts ``[N, 1]``."""

# Recurrent states between two steps of an evaluation: unchanged, zeros, or those of another episode.
KEPT, ZEROED, SHUFFLED = "kept", "zeroed", "shuffled"


class StoppedError(Exception):
    """The evaluation is to stop early."""


@contextmanager
def random_numbers_restored() -> Iterator[None]:
    """Isolates training from evaluation: neither its timing nor its repetition on resume changes what follows."""
    state = GlobalRNGState().state_dict()
    try:
        yield
    finally:
        GlobalRNGState().load_state_dict(state)


@torch.no_grad()
@random_numbers_restored()
def evaluate(
    config: EnvConfig,
    policy: Policy | None,
    episodes: int,
    seed: int,
    states: str = KEPT,
    stopped: Callable[[], bool] = lambda: False,
    deterministic: bool = True,
    watch: Watch | None = None,
) -> list[float]:
    """Undiscounted, unscaled returns of episodes, or of random actions.

    Each environment contributes its first episodes, equally many, so that short episodes are not overrepresented: one,
    unless a simulator has fewer environments than ``episodes``.

    Args:
        config: the environment.
        policy: acts on its own device; None for random actions.
        episodes: number of episodes.
        seed: of the environments, to which an offset is added.
        states: ``kept`` leaves the recurrent states alone. ``zeroed`` sets them to zero before each step. ``shuffled``
            gives each environment the states of another one; there are at least two.
        stopped: called before each step; True ends the evaluation.
        deterministic: take the most probable actions; False to sample them with torch's global generator.
        watch: called with the environments before each of their steps, and with the policy's output.

    Raises:
        StoppedError: ``stopped`` returned True.
        RunError: an environment failed.
    """
    most_steps = MOST_RANDOM_STEPS if policy is None else MOST_STEPS
    copies = max(episodes, 2) if states == SHUFFLED else episodes
    privileged = policy is not None and HIDDEN in policy.critic_only
    with closing(make_batched_env(config, copies, seed + SEED_OFFSET, privileged=privileged)) as env:
        act: Act = lambda observation, _: random_action(env, observation)  # noqa: E731
        if policy is not None:
            act = _acting(env, policy, states, seed, deterministic, watch)
        copies = env.batch_size[0]
        left = episodes - 1 - torch.arange(copies, device=env.device).unsqueeze(1)
        each = left.div(copies, rounding_mode="floor") + 1
        returns = torch.zeros(copies, 1 + (episodes - 1) // copies, dtype=torch.float64, device=env.device)
        ended, number = torch.zeros_like(each), torch.arange(returns.shape[1], device=env.device)
        observation = env.reset_tensors(None)
        env.check_step(observation)
        done = torch.ones(copies, 1, dtype=torch.bool, device=env.device)
        for _ in range(most_steps):
            if stopped():
                raise StoppedError
            after = env.step_tensors(act(observation, done))
            env.check_step(after)
            returns += torch.where((ended == number) & (ended < each), after["reward"], 0.0)
            ended, done = ended + episodes_ended(after), after["done"]
            if (ended >= each).all():
                break
            observation = env.reset_tensors(done)
        else:
            logger.warning(
                "%d of %d evaluation episodes of %s had not ended after %d steps; their returns so far are "
                "counted. Give env.max_episode_steps.",
                *(int((each - ended).clamp(min=0).sum()), episodes, config.id, most_steps),
            )
    found: list[float] = returns.T[number.unsqueeze(1) < each.T].tolist()
    return found


@random_numbers_restored()
def evaluate_many(
    config: EnvConfig,
    policy: Policy,
    episodes: int,
    all_seeds: Sequence[int],
    states: str,
    deterministic: bool,
    watching: Sequence[Watch] = (),
) -> list[float]:
    """:func:`evaluate` with each of several seeds, and with any number of episodes.

    At most :data:`MOST_COPIES` environments exist at a time. Single environments get the seeds that they would get if
    there were as many as episodes.

    Args:
        config: the environment.
        policy: acts on its own device.
        episodes: for each seed.
        all_seeds: of the environments.
        states: as for :func:`evaluate`.
        deterministic: as for :func:`evaluate`.
        watching: one for each seed, for its first environments; or none.
    """
    returns = []
    for seed, watch in itertools.zip_longest(all_seeds, watching):
        starts = seeds(seed + SEED_OFFSET, episodes)[::MOST_COPIES]
        for first, start in zip(range(0, episodes, MOST_COPIES), starts, strict=True):
            count, began = min(MOST_COPIES, episodes - first), start - SEED_OFFSET
            torch.manual_seed(began)
            seen_by = watch if first == 0 else None
            returns += evaluate(config, policy, count, began, states, deterministic=deterministic, watch=seen_by)
    return returns


def _acting(env: BatchedEnv, policy: Policy, states: str, seed: int, deterministic: bool, watch: Watch | None) -> Act:
    """A function of observations and episode starts ``[N, 1]`` that returns the policy's actions."""
    device, count = policy.device, env.batch_size[0]
    generator = torch.Generator().manual_seed(seed)
    state: State = policy.initial_state(count)

    def act(observation: Tensors, is_init: Tensor) -> Any:
        nonlocal state
        entries = observation_in({key: value.to(device) for key, value in observation.items()})
        state = _treated(policy.reset(state, is_init.to(device).squeeze(-1)), policy.state_keys, states, generator)
        noise = None if deterministic else torch.randn(count, policy.noise_size, device=device)
        output = policy.step(entries, state, None, noise)
        state = output.state
        if watch is not None:
            watch(env, output)
        return output.action.to(env.device)

    return act


def _treated(state: State, keys: Sequence[NestedKey], states: str, generator: torch.Generator) -> State:
    """The recurrent states with which the policy acts."""
    if states == KEPT:
        return state
    if states == ZEROED:
        return {**state, **{key: torch.zeros_like(state[key]) for key in keys}}
    # A rotation: each environment gets all states of another one.
    count = len(next(iter(state.values())))
    by = int(torch.randint(1, count, (), generator=generator))
    return {**state, **{key: state[key].roll(by, 0) for key in keys}}


def memory_metrics(
    config: EnvConfig, policy: Policy, episodes: int, seed: int, stopped: Callable[[], bool] = lambda: False
) -> dict[str, float]:
    """The returns in the same episodes with the policy's recurrent states zeroed, and shuffled.

    They are lower if the policy uses its memory, and the same if it does not. Empty for a policy without states.
    """
    if not policy.state_keys:
        return {}
    return {
        f"eval/return_mean_{states}_state": fmean(evaluate(config, policy, episodes, seed, states, stopped))
        for states in (ZEROED, SHUFFLED)
    }


@random_numbers_restored()
def random_metrics(
    config: EnvConfig, episodes: int, seed: int, stopped: Callable[[], bool] = lambda: False
) -> dict[str, float]:
    """The baseline: the returns of random actions in the environments of the evaluation."""
    torch.manual_seed(seed)
    returns = evaluate(config, None, episodes, seed, KEPT, stopped)
    return {"eval/return_mean_random": fmean(returns), "eval/return_std_random": pstdev(returns)}
