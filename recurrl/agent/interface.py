"""What a policy's environment gives and takes, as its user sees it: before and after all that recurrl adds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from recurrl.config import EnvConfig
from recurrl.envs.source import source_of
from recurrl.envs.spaces import leaves
from recurrl.envs.wrappers import named
from recurrl.keys import ACTION, OBSERVATION, name_of

Space = spaces.Space[Any]


@dataclass(frozen=True)
class Interface:
    """The spaces of a plain environment, and what the policy sees of them.

    Attributes:
        env: options of the environment.
        observation_space: of the environment within its user's wrappers.
        action_space: likewise.
        scales_actions: continuous actions of the policy are in units of half their range.
        critic_only: entries of the observation that acting does not need.
    """

    env: EnvConfig
    observation_space: Space
    action_space: Space
    scales_actions: bool
    critic_only: tuple[str, ...] = ()

    def observations(self) -> Iterator[tuple[str, tuple[str, ...], Space]]:
        """The name, path and space of each entry of an observation that the policy acts on.

        The entries of a tuple are 0, 1, and so on.
        """
        for name, path, space in _entries(OBSERVATION, self.observation_space):
            if not path or path[0] not in self.critic_only:
                yield name, path, space

    def actions(self) -> Iterator[tuple[str, tuple[str, ...], Space]]:
        """The same for actions."""
        return _entries(ACTION, self.action_space)


def interface_of(env: EnvConfig, critic_only: tuple[str, ...] = ()) -> Interface:
    """The interface of a configured environment, of which one copy is made and closed.

    Args:
        env: options of the environment.
        critic_only: entries of the observation that only the critic sees.

    Raises:
        ConfigError: it cannot be made.
    """
    source = source_of(env)
    observed, acted = source.plain_spaces()
    return Interface(env, observed, acted, source.scales_actions, critic_only)


def _entries(name: str, space: Space) -> Iterator[tuple[str, tuple[str, ...], Space]]:
    for path, leaf in leaves(named(space)):
        yield name_of((name, *path)), path, leaf
