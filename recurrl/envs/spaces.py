"""The Gymnasium spaces that policies support, and TorchRL's specs of them."""

import logging
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torchrl.data import Composite, TensorSpec
from torchrl.envs.libs.gym import _gym_to_torchrl_spec_transform

from recurrl.errors import ConfigError

Space = spaces.Space[Any]
OBSERVATIONS = (
    "vectors, images (bytes, or numbers from 0 to 1), Discrete, MultiDiscrete and MultiBinary observations, and dicts "
    "and tuples of these"
)
ACTIONS = "Discrete, MultiDiscrete, MultiBinary and continuous actions, and dicts and tuples of these"


_log_once = cache(partial(logging.getLogger(__name__).info, "%s: what the policy sees leaves out text: %s"))


def supported_spaces(env_id: str, observation: Space, action: Space) -> tuple[Space, Space]:
    """The observation and the action space in the form that policies take: dicts for tuples, and without text.

    The text that is left out of the observation is logged.

    Raises:
        ConfigError: no policy supports them; with what to do.
    """
    everything, observation, action = named(observation), named(observation, text=False), named(action)
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
    seen = dict(leaves(observation))
    if text := [".".join(path) for path, _ in leaves(everything) if path not in seen]:
        _log_once(env_id, ", ".join(text))
    return observation, action


def parts_of(space: Space) -> dict[str, Space]:
    """The entries of a dict, and the parts of a tuple as ``0``, ``1``, and so on; none of other spaces."""
    if isinstance(space, spaces.Tuple):
        return {str(i): part for i, part in enumerate(space.spaces)}
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {}


def named(space: Space, text: bool = True) -> Space:
    """The space with dicts for tuples; without entries of text if ``text`` is False and there are others."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return space
    parts = parts_of(space)
    kept = parts if text else {key: part for key, part in parts.items() if not _is_text(part)}
    return spaces.Dict({key: named(part, text) for key, part in (kept or parts).items()})


def _is_text(space: Space) -> bool:
    return all(leaf.dtype is not None and leaf.dtype.kind == "U" for _, leaf in leaves(space))


def leaves(space: Space, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Space]]:
    """The leaf spaces of nested dicts and tuples, with the path to each; an empty one is a leaf."""
    parts = parts_of(space)
    if not parts:
        yield path, space
    for key, entry in parts.items():
        yield from leaves(entry, (*path, key))


def spec_of(space: Space, count: int) -> TensorSpec:
    """The spec of the observations or actions of ``count`` environments."""
    return Composite({"all": _spec(space)}).expand(count)["all"]


def dtype_of(space: Space) -> np.dtype[Any]:
    """The dtype in which policies take an entry of an observation or an action."""
    return torch.empty(0, dtype=spec_of(space, 1).dtype).numpy().dtype


def _spec(space: Space) -> Any:
    if isinstance(space, spaces.Dict):
        # Not by TorchRL, which renames entries called "state".
        return Composite({key: _spec(entry) for key, entry in space.spaces.items()})
    return _gym_to_torchrl_spec_transform(space, categorical_action_encoding=True)


def _unsupported_observation(space: Space) -> str | None:
    """The reason why no encoder supports an observation; None if one does."""
    if not isinstance(space, spaces.Box):
        return _not_discrete(space)
    dims, image = len(space.shape), space.dtype == np.uint8 or (space.low.min() >= 0 and space.high.max() <= 1)
    if dims > 3:
        return f"it has {dims} dimensions"
    if dims == 3 and not image:
        return "it has three dimensions but is not an image"
    return None


def _unsupported_action(space: Space) -> str | None:
    """The reason why no head supports an action; None if one does."""
    if not isinstance(space, spaces.Box):
        return _not_discrete(space)
    if not np.issubdtype(space.dtype, np.floating):
        return "a Box of integers"
    return None if space.shape else "it has no dimensions; give it the shape (1,)"


def _not_discrete(space: Space) -> str | None:
    if isinstance(space, spaces.MultiBinary):
        return None
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) != 1:
        return "it has several dimensions"
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return "it does not start at zero" if np.any(space.start) else None
    return "an empty dict" if isinstance(space, spaces.Dict) else f"a {type(space).__name__}"
