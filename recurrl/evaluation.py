"""Evaluation of a policy: plays complete episodes, by default with its most probable actions.

Shape legend: N environments, E columns: one for each episode of an environment, and one for what comes after them.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from math import ceil
from statistics import fmean

import torch
from tensordict import NestedKey

from recurrl.config import EnvConfig
from recurrl.envs.batched import Tensors, TorchRLEnv, episodes_ended, observation_in
from recurrl.envs.making import make_batched_env, random_action
from recurrl.envs.policy_env import PolicyEnv
from recurrl.errors import require
from recurrl.keys import PRIVILEGED
from recurrl.policy.policy import Policy, State, StepOutput
from recurrl.returns import sample_std
from recurrl.runtime.seeds import random_numbers_restored
from recurrl.runtime.serialization import to_bytes

# Added to the run's seed, so that evaluation does not repeat the episodes of training.
SEED_OFFSET = 1_000_003

MAX_STEPS = 100_000
"""An evaluation ends after this many steps per episode of an environment; unfinished returns count as they are."""
MAX_RANDOM_STEPS = 10_000
"""Like :data:`MAX_STEPS`, for episodes of random actions."""
MAX_COPIES = 240
"""The most environments of an evaluation, a multiple of the usual numbers of agents; a simulator keeps its own."""

logger = logging.getLogger(__name__)

# Treatments of the recurrent states between two steps: unchanged, zeros, or those of another episode.
KEPT, ZEROED, SHUFFLED = "kept", "zeroed", "shuffled"


Observer = Callable[[PolicyEnv, StepOutput | None, Tensors], None]
"""Called after the first reset, with None, and after each step, before resets, with the policy's output."""


class StoppedError(Exception):
    """The evaluation was stopped early, by request."""


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
    observer: Observer | None = None,
) -> list[float]:
    """Plays episodes, and returns the undiscounted, unscaled return of each.

    How many episodes each environment plays is fixed in advance and differs by one at most, so that short episodes are
    not over-represented. The process's random number generators are left as they were.

    Args:
        config: options of the environment.
        policy: the policy, which acts on its own device; None for random actions.
        episodes: number of episodes.
        seed: the seed of torch's global generator and, with an offset, of the environments.
        states: ``kept`` leaves the recurrent states alone. ``zeroed`` sets them to zero before each step. ``shuffled``
            gives each environment the states of another one, and so uses at least two.
        stopped: called before each step; True ends the evaluation.
        deterministic: take the most probable actions; False to sample them.
        observer: observes what the policy does.

    Raises:
        StoppedError: ``stopped`` returned True.
        ConfigError: a TorchRL environment keeps statistics.
        RunError: an environment failed.
    """
    copies = max(min(episodes, MAX_COPIES), 2 if states == SHUFFLED else 1)
    privileged = policy is not None and PRIVILEGED in policy.critic_only
    torch.manual_seed(seed)
    with closing(make_batched_env(config, copies, seed + SEED_OFFSET, privileged=privileged)) as env:
        count, device = env.batch_size[0], env.device
        generator = torch.Generator().manual_seed(seed)
        state: State = {} if policy is None else policy.initial_state(count)
        most = ceil(episodes / count)
        max_steps = most * (MAX_RANDOM_STEPS if policy is None else MAX_STEPS)
        # Environment n plays the episodes n, n + N, n + 2 N and so on; the last column takes what comes after them.
        wanted_N1 = (episodes - torch.arange(count, device=device).unsqueeze(1) + count - 1) // count
        ended_N1 = torch.zeros_like(wanted_N1)
        returns_NE = torch.zeros(count, most + 1, dtype=torch.float64, device=device)
        observation = env.reset_tensors(None)
        env.check_step(observation)
        if observer is not None:
            observer(env, None, observation)
        done = torch.ones(count, 1, dtype=torch.bool, device=device)
        for _ in range(max_steps):
            if stopped():
                raise StoppedError
            if policy is None:
                action, output = random_action(env, observation), None
            else:
                entering: State = policy.reset(state, done.squeeze(-1).to(policy.device))
                entering = _with_states(entering, policy.state_keys, states, generator)
                output = _step(policy, observation, entering, deterministic)
                action, state = output.action.to(device), output.state
            after = env.step_tensors(action)
            env.check_step(after)
            if observer is not None:
                observer(env, output, after)
            returns_NE.scatter_add_(1, ended_N1.clamp(max=most), after["reward"].double())
            ended_N1 += episodes_ended(after)
            unfinished = int((wanted_N1 - ended_N1).clamp(min=0).sum())
            if not unfinished:
                break
            done = after["done"]
            observation = env.reset_tensors(done)
            env.check_step(observation)
        else:
            logger.warning(
                "%d of %d evaluation episodes of %s had not ended after %d steps; their returns so far are "
                "counted. Set env.max_episode_steps.",
                *(unfinished, episodes, config.id, max_steps),
            )
        require(
            not _keeps_statistics(env, seed),
            f"env.id={config.id} must not keep statistics in its transforms or buffers: an evaluation begins without "
            "them. Use env.normalize_observation and env.normalize_reward instead, or set evaluation.episodes=0.",
        )
    return returns_NE[:, :-1].T.flatten()[:episodes].tolist()


def _keeps_statistics(env: PolicyEnv, seed: int) -> bool:
    """True if transforms or buffers of TorchRL hold something that outlasts a reset, which stacked frames do not."""
    if not isinstance(env.raw, TorchRLEnv):
        return False
    states = []
    for _ in range(2):
        torch.manual_seed(seed)
        env.set_seed(seed)
        observation = env.reset_tensors(None)
        states.append(to_bytes(env.raw.stateful.state_dict()))
        env.step_tensors(random_action(env, observation))
    return states[0] != states[1]


def _step(policy: Policy, observation: Tensors, state: State, deterministic: bool) -> StepOutput:
    """A step of the policy, on its own device."""
    entries_N = {key: value.to(policy.device) for key, value in observation.items()}
    count = len(next(iter(entries_N.values())))
    noise = None if deterministic else torch.randn(count, policy.noise_size, device=policy.device)
    return policy.step(observation_in(entries_N), state, None, noise)


def _with_states(state: State, keys: Sequence[NestedKey], states: str, generator: torch.Generator) -> State:
    """The state with its recurrent entries treated as ``states`` says."""
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
    """The mean returns of the same evaluation with the policy's recurrent states zeroed, and shuffled.

    They are lower than the evaluation's if the policy uses its memory. Empty for a policy without states.
    """
    if not policy.state_keys:
        return {}
    return {
        f"eval/return_mean_{states}_state": fmean(evaluate(config, policy, episodes, seed, states, stopped))
        for states in (ZEROED, SHUFFLED)
    }


def random_metrics(
    config: EnvConfig, episodes: int, seed: int, stopped: Callable[[], bool] = lambda: False
) -> dict[str, float]:
    """The baseline: the mean and standard deviation of the returns of random actions, in the same evaluation."""
    returns = evaluate(config, None, episodes, seed, KEPT, stopped)
    return {"eval/return_mean_random": fmean(returns), "eval/return_std_random": sample_std(returns)}
