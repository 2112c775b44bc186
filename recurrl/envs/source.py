"""Sources of environments: the base of the choices of ``env.source``."""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import closing
from typing import Any

import gymnasium
from gymnasium import spaces
from torchrl.envs import EnvBase

from recurrl.config.env import EnvConfig
from recurrl.config.plugins import factory, values
from recurrl.envs.single import SingleEnv
from recurrl.errors import ConfigError

_ALWAYS = (
    *("name", "source", "id", "ids", "num_envs", "mask", "previous_action", "previous_reward"),
    *("reward_scale", "normalize_observation", "normalize_reward"),
)
"""Options that every source honours. Others have the values of ``env=gym`` when they are not used."""


class Source(ABC):
    """Makes the environments of a run. A custom one needs only :meth:`make`.

    For further options, its constructor's first parameter is annotated with a dataclass derived from ``EnvConfig``.

    Args:
        options: as configured.

    Attributes:
        options: the configured ones.
        honours: the options of every environment that this source honours. A run that uses another one is rejected.
        is_simulator: it makes a :class:`recurrl.envs.vec_env.VecEnv` of ``env.num_envs`` environments, once in a
            process, which is used in turn for whatever needs environments.
    """

    honours: Collection[str] = ()
    is_simulator: bool = False

    def __init__(self, options: EnvConfig) -> None:
        self.options = options

    @abstractmethod
    def make(self, num_envs: int) -> EnvBase:
        """An environment of batch size ``[num_envs]`` with the entries ``observation``, ``action`` and ``reward``.

        It gives and takes its own values; :class:`recurrl.envs.policy_env.PolicyEnv` hides, adds and scales them.
        A :class:`recurrl.envs.BatchedEnv` is several times as fast as other environments of TorchRL.

        Raises:
            ConfigError: it cannot be made as configured.
        """

    def plain(self) -> gymnasium.Env[Any, Any]:
        """One environment with Gymnasium's interface, for the user of a trained policy."""
        return SingleEnv(self.make(1))

    def plain_spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """The observation and the action space of :meth:`plain`."""
        with closing(self.plain()) as env:
            return env.observation_space, env.action_space

    def check(self) -> None:
        """Rejects what cannot be honoured, before any environment is made.

        Raises:
            ConfigError: with what to do.
        """
        for name, unused in values("env", "gym").items():
            value = getattr(self.options, name)
            if name not in (*_ALWAYS, *self.honours) and value != unused:
                shown, instead = (json.dumps(each, default=str).strip('"') for each in (value, unused))
                raise ConfigError(
                    f"env.source={self.options.source} does not support env.{name}={shown}. Give env.{name}={instead}."
                )

    def episode_limit(self) -> int | None:
        """The steps after which an episode is truncated; None if unknown."""
        return self.options.max_episode_steps


def source_of(config: EnvConfig) -> Source:
    """The source that ``env.source`` names.

    Raises:
        ConfigError: no such source exists, or it is not a :class:`Source`.
    """
    source = factory("env", config.source)(config)
    if not isinstance(source, Source):
        raise ConfigError(
            f"env.source={config.source} made a {type(source).__name__}, which is not a recurrl.envs.Source. Derive "
            "from recurrl.envs.GymnasiumSource or recurrl.envs.Source."
        )
    return source
