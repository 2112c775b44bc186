"""Environments of TorchRL that a class or function makes, with configurable keys."""

from typing import Any

from tensordict import NestedKey
from torchrl.envs import EnvBase

from recurrl.config.env import TorchRLConfig
from recurrl.envs.batched import TorchRLEnv
from recurrl.envs.sources.gymnasium import CallableSource, maker_of
from recurrl.errors import ConfigError, require
from recurrl.keys import OBSERVATION, path_of


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
        action, reward, *observed = map(_key, (options.action_key, options.reward_key, *options.observation_keys))
        names = [OBSERVATION] if len(observed) == 1 else [(OBSERVATION, *path_of(key)) for key in observed]
        return TorchRLEnv(super()._batched(env), dict(zip(names, observed, strict=True)), action, reward)


def _key(name: str) -> NestedKey:
    """The key that an option names."""
    return tuple(name.split(".")) if "." in name else name


def make(options: TorchRLConfig) -> TorchRLSource:
    """The source of ``env.id=module:Name``.

    Raises:
        ConfigError: the module has no such name.
    """
    maker = maker_of(options)
    if maker is None:
        raise ConfigError(f"env.id must be module:Name with env=torchrl (got {options.id}). Choose env=gym for an id.")
    return TorchRLSource(options, maker)
