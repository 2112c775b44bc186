"""The Gymnasium spaces that policies support, and TorchRL's specs of them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torchrl.data import Composite, TensorSpec
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
    of_each_kind = (
        ("observations", observation, _unsupported_observation, OBSERVATIONS),
        ("actions", action, _unsupported_action, ACTIONS),
    )
    for kind, whole, unsupported, supported in of_each_kind:
        for path, space in leaves(whole):
            is_empty = 0 in (getattr(space, "shape", None) or ())
            if reason := f"its shape {space.shape} has no entries" if is_empty else unsupported(space):
                entry = f" (entry {'.'.join(map(str, path))})" if path else ""
                raise ConfigError(
                    f"{env_id} has unsupported {kind} {space}{entry}: {reason}. recurrl trains on {supported}. Wrap "
                    "the environment to have one of these."
                )


def leaves(space: spaces.Space[Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], spaces.Space[Any]]]:
    """The leaf spaces of nested dicts, with the path to each; an empty dict is a leaf."""
    if not isinstance(space, spaces.Dict) or not space.spaces:
        yield path, space
        return
    for key, entry in space.spaces.items():
        yield from leaves(entry, (*path, key))


def spec_of(space: spaces.Space[Any], count: int) -> TensorSpec:
    """The spec of the observations or actions of ``count`` environments."""
    return Composite({"all": _spec(space)}).expand(count)["all"]


def dtype_of(space: spaces.Space[Any]) -> np.dtype[Any]:
    """The dtype in which policies take an entry of an observation or an action."""
    return torch.empty(0, dtype=spec_of(space, 1).dtype).numpy().dtype


def _spec(space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        # Not by TorchRL, which renames entries called "state".
        return Composite({key: _spec(entry) for key, entry in space.spaces.items()})
    return _gym_to_torchrl_spec_transform(space, categorical_action_encoding=True)


def _unsupported_observation(space: spaces.Space[Any]) -> str | None:
    """The reason why no encoder supports an observation; None if one does."""
    if not isinstance(space, spaces.Box):
        return _not_discrete(space)
    dims, image = len(space.shape), space.dtype == np.uint8 or (space.low.min() >= 0 and space.high.max() <= 1)
    if dims > 3:
        return f"it has {dims} dimensions"
    if dims == 3 and not image:
        return "it has three dimensions but is not an image"
    return None


def _unsupported_action(space: spaces.Space[Any]) -> str | None:
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
