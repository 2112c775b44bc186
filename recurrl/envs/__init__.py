"""Makes any environment into one a recurrent policy can be trained in: batched, with is_init, primers and returns.

One module a source of environments, but for those whose names begin with ``_``. A source has two functions:
``check(config)`` refuses a configuration without making anything, and ``make(config, num_envs)`` returns a TorchRL
environment of batch size ``[num_envs]`` with the entries ``observation``, ``action`` and ``reward``.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from torch import nn
from torchrl.envs import Compose, EnvBase, InitTracker, RewardSum, StepCounter, TransformedEnv

from recurrl.config import EnvConfig
from recurrl.envs._tensors import TensorEnv
from recurrl.errors import ConfigError
from recurrl.recurrent import RecurrentModule

EPISODE_RETURN = "episode_reward"
EPISODE_LENGTH = "step_count"


def source_names() -> tuple[str, ...]:
    """The sources of environments there are."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_")))


def check(config: EnvConfig) -> None:
    """Refuses an environment that cannot be made, before any is.

    Raises:
        ConfigError: with what to do.
    """
    _source(config).check(config)


def make_env(config: EnvConfig, num_envs: int, seed: int, policy: nn.Module | None = None) -> TransformedEnv:
    """``num_envs`` copies of an environment as one of batch size ``[num_envs]``, seeded.

    Adds ``is_init``, the episode's running return and length, and, given a policy, a primer for each of its recurrent
    states.

    Raises:
        ConfigError: the environment cannot be made, or the policy cannot act in it.
    """
    primers = [module.make_tensordict_primer() for module in recurrent_modules(policy)]
    transforms = Compose(InitTracker(), StepCounter(step_count_key=EPISODE_LENGTH), RewardSum(), *primers)
    env = TransformedEnv(_source(config).make(config, num_envs), transforms)
    env.set_seed(seed)
    if policy is not None:
        check_states(env, policy)
    return env


def check_states(env: EnvBase, policy: nn.Module) -> None:
    """Refuses an environment that would run a recurrent policy without its memory.

    Raises:
        ConfigError: the environment does not carry one of the policy's states, or does not mark episode starts.
    """
    carried = set(env.observation_spec.keys(True, True)) | set(env.state_spec.keys(True, True))
    for module in recurrent_modules(policy):
        for key in module.state_keys:
            if key not in carried:
                raise ConfigError(
                    f"The policy's recurrent state {key!r} has no primer in the environment, so it would start anew "
                    "at every step and the policy would have no memory. Append "
                    "module.make_tensordict_primer() to the environment, or build it with recurrl.envs.make_env."
                )
        if module.in_keys[-1] not in carried:
            raise ConfigError(
                f"The environment does not mark episode starts with {module.in_keys[-1]!r}, so the policy's state "
                "would leak from one episode into the next. Append torchrl.envs.InitTracker() to the environment, or "
                "build it with recurrl.envs.make_env."
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
    "TensorEnv",
    "check",
    "check_states",
    "make_env",
    "recurrent_modules",
    "source_names",
]
