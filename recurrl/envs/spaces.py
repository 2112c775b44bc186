"""The Gymnasium spaces that policies support, and TorchRL's specs of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from torchrl.data import Composite
from torchrl.envs.libs.gym import _gym_to_torchrl_spec_transform

from recurrl.errors import ConfigError

OBSERVATIONS = (
    "vectors, images (bytes, or numbers from 0 to 1), Discrete, MultiDiscrete and MultiBinary observations, and dicts "
    "and tuples of these"
)
ACTIONS = "Discrete, MultiDiscrete, MultiBinary and continuous actions, and dicts and tuples of these"


def check_spaces(env_id: str, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
    """Rejects observation and action spaces that no policy supports.

    Raises:
        ConfigError: with what to do.
    """
    for path, space in leaves(observation):
        reason = _empty(space) or _not_seen(space)
        if reason:
            raise ConfigError(
                f"{env_id} has unsupported observations {space}{_at(path)}: {reason}. recurrl trains on "
                f"{OBSERVATIONS}. Wrap the environment to return one of these."
            )
    for path, space in leaves(action):
        reason = _empty(space) or _not_done(space)
        if reason:
            raise ConfigError(
                f"{env_id} has unsupported actions {space}{_at(path)}: {reason}. recurrl trains on {ACTIONS}. Wrap the "
                "environment to accept one of these."
            )


def leaves(space: spaces.Space[Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], spaces.Space[Any]]]:
    """The leaf spaces of nested dicts, with the path to each; an empty dict is a leaf."""
    if not isinstance(space, spaces.Dict) or not space.spaces:
        yield path, space
        return
    for key, entry in space.spaces.items():
        yield from leaves(entry, (*path, key))


def spec_under(key: str, space: spaces.Space[Any]) -> Composite:
    """The spec of an observation or action under its key; a dict has it already."""
    return _spec(space if isinstance(space, spaces.Dict) else spaces.Dict({key: space}))


def _spec(space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        # Not by TorchRL, which renames entries called "state".
        return Composite({key: _spec(entry) for key, entry in space.spaces.items()})
    return _gym_to_torchrl_spec_transform(space, categorical_action_encoding=True)


def _at(path: tuple[str, ...]) -> str:
    return f" (entry {'.'.join(map(str, path))})" if path else ""


def _empty(space: spaces.Space[Any]) -> str | None:
    """The reason why a space is empty; None if it is not."""
    return f"its shape {space.shape} has no entries" if 0 in (getattr(space, "shape", None) or ()) else None


def _not_seen(space: spaces.Space[Any]) -> str | None:
    """The reason why no encoder supports an observation; None if one does."""
    if not isinstance(space, spaces.Box):
        return _not_discrete(space)
    dims, image = len(space.shape), space.dtype == np.uint8 or (space.low.min() >= 0 and space.high.max() <= 1)
    if dims > 3:
        return f"it has {dims} dimensions"
    if dims == 3 and not image:
        return "it has three dimensions but is not an image"
    return None


def _not_done(space: spaces.Space[Any]) -> str | None:
    """The reason why no head supports an action; None if one does."""
    if not isinstance(space, spaces.Box):
        return _not_discrete(space)
    if not np.issubdtype(space.dtype, np.floating):
        return "a Box of integers"
    return None if space.shape else "it has no dimensions; give it the shape (1,)"


def _not_discrete(space: spaces.Space[Any]) -> str | None:
    if isinstance(space, spaces.MultiBinary):
        return None
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) != 1:
        return "it has several dimensions"
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return "it does not start at zero" if np.any(space.start) else None
    return "an empty dict" if isinstance(space, spaces.Dict) else f"a {type(space).__name__}"
