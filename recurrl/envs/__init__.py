"""Builds environments for recurrent policies: batched, with is_init, primers and returns.

One module per source of environments, except those whose names begin with ``_``. A source has three functions:
``check(config)`` rejects a bad configuration without making anything; ``episode_limit(config)`` returns the maximal
episode length; and ``make(config, num_envs, groups)`` returns a TorchRL environment of batch size ``[num_envs]`` with
the entries ``observation``, ``action`` and ``reward``. With groups, a group's members start from the same states.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn
from torchrl.data import Bounded
from torchrl.envs import Compose, EnvBase, InitTracker, StepCounter, TransformedEnv

from recurrl.config import EnvConfig
from recurrl.envs._episode_return import EpisodeReturn
from recurrl.envs._tensors import TensorEnv
from recurrl.errors import ConfigError
from recurrl.groups import Groups
from recurrl.keys import ACTION, ACTION_MASK, OBSERVATION
from recurrl.recurrent import RecurrentModule
from recurrl.specs import choices
from recurrl.time_limit import limited

EPISODE_RETURN = "episode_reward"
EPISODE_LENGTH = "step_count"


def source_names() -> tuple[str, ...]:
    """The available sources of environments."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_")))


def check(config: EnvConfig) -> None:
    """Rejects an environment that cannot be made, before any is made.

    Raises:
        ConfigError: with what to do.
    """
    _source(config).check(config)


def check_rows(config: EnvConfig, steps_per_row: int) -> None:
    """Rejects rows that begin with a reset and may be shorter than an episode, whose later steps would never be seen.

    Raises:
        ConfigError: with a row length that works.
    """
    limit = _source(config).episode_limit(config)
    if limit is not None and steps_per_row < limit:
        raise ConfigError(
            f"With algorithm=grpo every row begins with a reset, and rows have {steps_per_row} steps (frames_per_batch "
            f"/ env.num_envs), but an episode of {config.id} may have {limit}: later steps would never be seen. Give "
            f"frames_per_batch={limit * config.num_envs}, and a slice_len that divides {limit}; or, if shorter "
            f"episodes are meant, env.max_episode_steps={steps_per_row}."
        )


def make_env(
    config: EnvConfig, num_envs: int, seed: int, policy: nn.Module | None = None, groups: Groups | None = None
) -> TransformedEnv:
    """``num_envs`` copies of an environment as one seeded environment of batch size ``[num_envs]``.

    Adds ``is_init``, the episode's running return and length, and, given a policy, a primer for what its modules carry
    from step to step. A step of all copies, and a reset, take no longer than
    :func:`recurrl.time_limit.time_limit` allows.

    Raises:
        ConfigError: the environment cannot be made, does not fit the policy, or cannot start groups alike.
    """
    if groups is not None:
        check_seeds(config, groups)
    modules: list[Any] = [] if policy is None else list(policy.modules())
    primers = [module.make_tensordict_primer() for module in modules if hasattr(module, "make_tensordict_primer")]
    transforms = Compose(InitTracker(), StepCounter(step_count_key=EPISODE_LENGTH), EpisodeReturn(), *primers)
    env = TransformedEnv(_limited(_source(config).make(config, num_envs, groups)), transforms)
    env.set_seed(seed)
    if policy is not None:
        check_states(env, policy)
    return env


def _limited(env: EnvBase) -> EnvBase:
    """The same environment, whose calls take no longer than the process's time limit."""
    tensors = ("step_tensors", "reset_tensors", "episodes", "restore_episodes")
    steps = tensors if isinstance(env, TensorEnv) else ("_step", "_reset")
    for name in (*steps, "set_seed", "close"):
        setattr(env, name, limited(getattr(env, name)))
    return env


def check_states(env: EnvBase, policy: nn.Module) -> None:
    """Rejects an environment that would run a recurrent policy without its memory.

    Raises:
        ConfigError: the environment does not carry one of the policy's states, or does not mark episode starts.
    """
    carried = set(env.observation_spec.keys(True, True)) | set(env.state_spec.keys(True, True))
    for module in recurrent_modules(policy):
        for key in module.state_keys:
            if key not in carried:
                raise ConfigError(
                    f"The policy's recurrent state {key!r} has no primer in the environment, so it would be reset at "
                    "every step and the policy would have no memory. Append module.make_tensordict_primer() to the "
                    "environment, or build it with recurrl.envs.make_env."
                )
        if module.in_keys[-1] not in carried:
            raise ConfigError(
                f"The environment does not mark episode starts with {module.in_keys[-1]!r}, so the policy's state "
                "would leak from one episode into the next. Append torchrl.envs.InitTracker() to the environment, or "
                "build it with recurrl.envs.make_env."
            )


def check_seeds(config: EnvConfig, groups: Groups, episodes: int = 4, steps: int = 8) -> None:
    """Rejects an environment that ignores reset seeds, by resetting and stepping two copies alike.

    Stepping reveals hidden state: different states behind equal observations show in later ones.

    Raises:
        ConfigError: the copies differ.
    """
    alike = replace(groups, size=2, steps_per_row=steps)
    env = _source(config).make(config, 2, alike)
    try:
        for episode in range(episodes):
            current = env.reset()
            _compare_copies(config, current, "observation", f"after reset {episode + 1}")
            for step in range(steps):
                acted = act_at_random(env, current)
                acted["action"][1] = acted["action"][0]
                stepped, current = env.step_and_maybe_reset(acted)
                for key in ("observation", "reward", "done"):
                    _compare_copies(config, stepped["next"], key, f"{step + 1} steps after reset {episode + 1}")
    finally:
        env.close()


def act_at_random(env: EnvBase, current_N: TensorDictBase) -> TensorDictBase:
    """Writes random actions that respect the action mask, if there is one.

    They are uniform within an entry's bounds, and standard normal where it lacks one.
    """
    observation, action = current_N[OBSERVATION], env.full_action_spec[ACTION]
    if not isinstance(observation, torch.Tensor) and ACTION_MASK in observation:
        mask = observation[ACTION_MASK]
        sizes = choices(action[0]) or (mask.shape[-1],)
        chosen = [torch.multinomial(part.double(), 1) for part in mask.split(sizes, -1)]
        return current_N.set(ACTION, torch.cat(chosen, -1).reshape(action.shape))
    drawn = env.full_action_spec.rand()
    for key, spec in env.full_action_spec.items(True, True):
        if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
            low, high = spec.space.low, spec.space.high
            normal = torch.randn_like(low).clamp(low, high)
            drawn[key] = torch.where((high - low).isfinite(), drawn[key], normal)
    return current_N.update(drawn)


def _compare_copies(config: EnvConfig, tensordict: TensorDictBase, key: str, when: str) -> None:
    # Compare leaves, because an observation may be nested.
    entry = tensordict.select(key)
    for name in entry.keys(True, True):
        first, second = entry[name]
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            raise ConfigError(
                f"env.id={config.id} ignores reset seeds: two copies with the same seeds and actions differ in "
                f"{name!r} {when}. algorithm=grpo compares episodes that start from the same state. Have the "
                "environment draw from the generator seeded by reset(seed=...) (Gymnasium's self.np_random), or "
                "choose algorithm=ppo."
            )


def recurrent_modules(policy: nn.Module | None) -> list[RecurrentModule]:
    """The recurrent modules within a policy."""
    return [] if policy is None else [module for module in policy.modules() if isinstance(module, RecurrentModule)]


def _source(config: EnvConfig) -> Any:
    if config.source not in source_names():
        raise ConfigError(f"env.source={config.source} does not exist. Choose one of: {', '.join(source_names())}.")
    return importlib.import_module(f"{__name__}.{config.source}")


__all__ = [
    "EPISODE_LENGTH",
    "EPISODE_RETURN",
    "EpisodeReturn",
    "TensorEnv",
    "act_at_random",
    "check",
    "check_rows",
    "check_seeds",
    "check_states",
    "make_env",
    "recurrent_modules",
    "source_names",
]
