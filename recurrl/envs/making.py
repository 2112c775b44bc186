"""Makes the environments of a configuration: batched, seeded and checked.

Shape legend: N environments.
"""

from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.data import Bounded
from torchrl.envs import Compose, EnvBase, InitTracker, RewardSum, StepCounter, TransformedEnv
from torchrl.modules.utils import get_primers_from_module

from recurrl.config import EnvConfig
from recurrl.envs.batched import BatchedEnv, Tensors, TorchRLEnv
from recurrl.envs.checks import making
from recurrl.envs.policy_env import PolicyEnv
from recurrl.envs.source import source_of
from recurrl.errors import ConfigError, require
from recurrl.keys import ACTION, ACTION_MASK, EPISODE_LENGTH, OBSERVATION, PRIVILEGED
from recurrl.specs import choices


def make_batched_env(
    config: EnvConfig, num_envs: int, seed: int, group_size: int | None = None, privileged: bool = False
) -> PolicyEnv:
    """``num_envs`` copies of an environment as one seeded environment of batch size ``[num_envs]``.

    For a simulator, which a process has only once, its ``config.num_envs`` environments are used instead.

    A step or a reset of all copies takes no longer than :func:`recurrl.runtime.time_limit.time_limit` allows.

    Args:
        config: options of the environment.
        num_envs: the number of copies.
        seed: the first copy's seed.
        group_size: the number of neighbours whose episodes start from the same states; None for independent copies.
        privileged: add the entry ``privileged`` to observations: what the policy does not see, for the critic.

    Raises:
        ConfigError: the environment cannot be made, or cannot start episodes in groups.
    """
    env = _make(config, num_envs, privileged)
    if group_size is not None:
        env.raw.start_in_groups(group_size, seed)
        _check_groups(config, seed)
    env.set_seed(seed)
    return env


def make_env(config: EnvConfig, num_envs: int, seed: int, policy: nn.Module | None = None) -> TransformedEnv:
    """Like :func:`make_batched_env`, for TorchRL's collectors and ``env.rollout``.

    Adds ``is_init``, the episode's running return and length, and, with a policy, a primer for each entry that the
    policy passes from step to step. Observations have the entry ``privileged`` if the policy's critic reads it.
    """
    modules: list[Any] = [] if policy is None else list(policy.modules())
    privileged = any(PRIVILEGED in getattr(module, "critic_only", ()) for module in modules)
    primers = None if policy is None else get_primers_from_module(policy, warn=False)
    transforms = [InitTracker(), StepCounter(step_count_key=EPISODE_LENGTH), RewardSum()]
    env = make_batched_env(config, num_envs, seed, privileged=privileged)
    return TransformedEnv(env, Compose(*transforms, *([] if primers is None else [primers])))


def _make(config: EnvConfig, num_envs: int, privileged: bool = False) -> PolicyEnv:
    source = source_of(config)
    expected = config.num_envs if source.is_simulator else num_envs
    with making(f"env.id={config.id}"):
        env = source.make(num_envs)
        made = list(env.batch_size) if isinstance(env, EnvBase) else f"a {type(env).__name__}"
        require(
            made == [expected],
            f"env.source={config.source} must make {expected} environments of env.id={config.id}, as one of batch size "
            f"[{expected}] (got {made}). Have its factory take num_envs, and make that many.",
        )
        return PolicyEnv(env if isinstance(env, BatchedEnv) else TorchRLEnv(env), config, privileged)


def check_row_length(config: EnvConfig, steps_per_row: int) -> None:
    """Rejects rows that begin with a reset and may be shorter than an episode, whose later steps would never be seen.

    Raises:
        ConfigError: rows are too short; the message gives a row length that works.
    """
    limit = source_of(config).episode_limit()
    if limit is not None and steps_per_row < limit:
        raise ConfigError(
            f"With algorithm=grpo every row begins with a reset, and rows have {steps_per_row} steps (frames_per_batch "
            f"/ env.num_envs), but an episode of {config.id} may have {limit}: later steps would never be seen. Set "
            f"frames_per_batch={limit * config.num_envs}, and a slice_len that divides {limit}; or, if shorter "
            f"episodes are meant, env.max_episode_steps={steps_per_row}."
        )


def _check_groups(config: EnvConfig, seed: int, episodes: int = 4, steps: int = 8) -> None:
    """Rejects an environment that ignores reset seeds, by resetting and stepping two copies with the same seeds.

    The steps reveal hidden state: if it differs behind equal observations, later observations differ.

    Raises:
        ConfigError: the copies differ.
    """
    with closing(_make(config, 2)) as env:
        env.raw.start_in_groups(2, seed)
        for episode in range(1, episodes + 1):
            observation = env.reset_tensors(None)
            _check_equal(config, observation, f"after reset {episode}")
            for step in range(1, steps + 1):
                action = random_action(env, observation)
                action[1] = action[0]
                after = env.step_tensors(action)
                _check_equal(config, after, f"{step} steps after reset {episode}")
                observation = env.reset_tensors(after["done"])


def _check_equal(config: EnvConfig, copies: Tensors, when: str) -> None:
    for name, (first, second) in copies.items():
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            raise ConfigError(
                f"env.id={config.id} ignores reset seeds: two copies with the same seeds and actions differ in "
                f"{name!r} {when}. algorithm=grpo compares episodes that start from the same state. Have the "
                "environment draw from the generator seeded by reset(seed=...) (Gymnasium's self.np_random), or "
                "choose algorithm=ppo."
            )


def random_action(env: BatchedEnv, observation: Tensors) -> Any:
    """Random actions ``[N, ...]`` that respect the action mask, if there is one.

    Entries with two finite bounds are uniform between them; others are standard normal, clipped to their bounds.
    """
    spec = env.full_action_spec[ACTION]
    mask: Tensor | None = observation.get((OBSERVATION, ACTION_MASK))
    if mask is not None:
        sizes = choices(spec[0]) or (mask.shape[-1],)
        chosen = [torch.multinomial(part.double(), 1) for part in mask.split(sizes, -1)]
        return torch.cat(chosen, -1).reshape(spec.shape)
    drawn = env.full_action_spec.rand()
    for key, part in env.full_action_spec.items(True, True):
        if isinstance(part, Bounded) and part.dtype.is_floating_point:
            low, high = part.space.low, part.space.high
            normal = torch.randn_like(low).clamp(low, high)
            drawn[key] = torch.where((high - low).isfinite(), drawn[key], normal)
    return drawn[ACTION]
