"""The recurrent states that environments carry from step to step."""

from __future__ import annotations

from torch import nn
from torchrl.envs import EnvBase

from recurrl.errors import ConfigError
from recurrl.recurrent import RecurrentModule


def recurrent_modules(policy: nn.Module | None) -> list[RecurrentModule]:
    """The recurrent modules within a policy."""
    return [] if policy is None else [module for module in policy.modules() if isinstance(module, RecurrentModule)]


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
