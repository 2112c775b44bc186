"""Environments of TorchRL that a class or function makes, with configurable keys."""

from collections.abc import Iterable
from typing import Any

from tensordict import NestedKey
from torchrl.envs import EnvBase

from recurrl.config.env import TorchRLConfig
from recurrl.envs.batched import TorchRLEnv
from recurrl.envs.sources.gymnasium import CallableSource, maker_of
from recurrl.errors import ConfigError, require
from recurrl.keys import OBSERVATION, name_of, path_of


class TorchRLSource(CallableSource):
    """A TorchRL environment that ``env.id=module:Name`` makes, with its entries under the configured keys."""

    options: TorchRLConfig

    def create(self, num_envs: int = 1) -> Any:
        """Calls the class or function, and checks that it makes an environment of TorchRL."""
        env = super().create(num_envs)
        require(
            isinstance(env, EnvBase),
            f"env.id must make an environment of TorchRL (got {self.options.id}, which makes a {type(env).__name__}). "
            "Choose env=gym.",
        )
        return env

    def _batched(self, env: Any) -> TorchRLEnv:
        options = self.options
        observed = _checked("observation_keys", options.observation_keys, env.observation_spec.keys(True))
        (action,) = _checked("action_key", [options.action_key], env.full_action_spec.keys(True))
        (reward,) = _checked("reward_key", [options.reward_key], env.full_reward_spec.keys(True, True))
        names = [OBSERVATION] if len(observed) == 1 else [(OBSERVATION, *path_of(key)) for key in observed]
        return TorchRLEnv(super()._batched(env), dict(zip(names, observed, strict=True)), action, reward)


def _checked(option: str, keys: list[str], present: Iterable[NestedKey]) -> list[NestedKey]:
    """The keys that an option names. Rejects keys that the environment does not have."""
    known = {name_of(key): key for key in sorted(present, key=name_of)}
    for key in keys or [""]:
        require(
            key in known,
            f"env.{option} must name what the environment has: {', '.join(known)} (got {key or 'none'}). Join the "
            "names of a nested key by dots.",
        )
    return [known[key] for key in keys]


def make(options: TorchRLConfig) -> TorchRLSource:
    """The source of ``env.id=module:Name``.

    Raises:
        ConfigError: the module has no such name.
    """
    maker = maker_of(options)
    if maker is None:
        raise ConfigError(f"env.id must be module:Name with env=torchrl (got {options.id}). Choose env=gym for an id.")
    return TorchRLSource(options, maker)
