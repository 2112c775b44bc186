"""The Gymnasium spaces that policies support, and the corresponding specs of TorchRL."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded

from recurrl.errors import ConfigError, require
from recurrl.keys import ACTION_MASK, OBSERVATION, KeyPath
from recurrl.specs import bounds_of, choices

Space = spaces.Space[Any]
OBSERVATIONS = (
    "vectors, images (bytes, or numbers from 0 to 1), Discrete, MultiDiscrete and MultiBinary observations, and dicts "
    "and tuples of these"
)
ACTIONS = "Discrete, MultiDiscrete, MultiBinary and continuous actions, and dicts and tuples of these"

# The names of attributes of TorchRL's specs, which cannot be names of their entries.
_RESERVED = {"batch_size", "data_cls", "device", "dtype", "names", "shape", "space", "step_mdp_static"}

_log_once = cache(partial(logging.getLogger(__name__).info, "%s: text hidden from the policy: %s"))


def parts_of(space: Space) -> dict[str, Space]:
    """The entries of a dict, and the parts of a tuple as ``0``, ``1``, and so on; none of other spaces."""
    if isinstance(space, spaces.Tuple):
        return {str(i): part for i, part in enumerate(space.spaces)}
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {}


def tuples_to_dicts(space: Space, text: bool = True) -> Space:
    """The space with tuples replaced by dicts; the order of entries is kept. Text is left out if ``text`` is False.

    A dict or tuple of nothing but text keeps it.
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return space
    parts = parts_of(space)
    chosen = parts if text else {key: part for key, part in parts.items() if not is_text(part)}
    # As pairs: Gymnasium sorts the keys of a dict.
    return spaces.Dict([(key, tuples_to_dicts(part, text)) for key, part in (chosen or parts).items()])


def is_text(space: Space) -> bool:
    """True for text, and for dicts and tuples of nothing else."""
    return all(leaf.dtype is not None and leaf.dtype.kind == "U" for _, leaf in leaves(space))


def leaves(space: Space, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Space]]:
    """The leaf spaces of nested dicts and tuples, with the path to each; an empty one is a leaf."""
    parts = parts_of(space)
    if not parts:
        yield path, space
    for key, entry in parts.items():
        yield from leaves(entry, (*path, key))


def raw_specs(
    env_id: str, observation: Space, action: Space, count: int, masked: bool = False
) -> tuple[dict[str, TensorSpec], TensorSpec]:
    """The specs of the raw entries and of the action of ``count`` environments. Text is left out, which is logged once.

    Args:
        env_id: their id, for messages.
        observation: the space of one environment's observation.
        action: the space of one environment's action.
        count: the number of environments.
        masked: true if the info has an action mask.

    Raises:
        ConfigError: policies do not support these spaces; the message lists the supported ones.
    """
    seen, acted = tuples_to_dicts(observation, text=False), tuples_to_dicts(action)
    _check_supported(f"{env_id} has unsupported observations", seen, _unsupported_observation, OBSERVATIONS)
    _check_supported(f"{env_id} has unsupported actions", acted, _unsupported_action, ACTIONS)
    visible = dict(leaves(seen))
    if text := [".".join(path) for path, _ in leaves(tuples_to_dicts(observation)) if path not in visible]:
        _log_once(env_id, ", ".join(text))
    specs = {OBSERVATION: spec_of(seen, count)}
    if masked:
        specs[ACTION_MASK] = spec_of(spaces.MultiBinary(spaces.flatdim(action)), count)
    return specs, spec_of(acted, count)


def _check_supported(what: str, whole: Space, unsupported: Callable[[Any], str | None], supported: str) -> None:
    names = [".".join(path) for path, _ in leaves(whole)]
    require(len({*names}) == len(names), f"{what} {whole}: entries have the same name when joined by dots. Rename one.")
    for path, space in leaves(whole):
        if reserved := _RESERVED.intersection(path):
            raise ConfigError(f"{what} {whole}: TorchRL reserves the name {reserved.pop()!r}. Rename the entry.")
        is_empty = 0 in (getattr(space, "shape", None) or ())
        reason_of = unsupported if isinstance(space, spaces.Box) else _not_discrete
        reason = f"its shape {space.shape} has no entries" if is_empty else reason_of(space)
        # The numbers that torch cannot write into parts of a tensor.
        is_wide = unsupported is _unsupported_observation and space.dtype in (np.uint16, np.uint32, np.uint64)
        if reason := f"its dtype is {space.dtype}" if is_wide else reason:
            entry = f" (entry {'.'.join(path)})" if path else ""
            raise ConfigError(
                f"{what} {space}{entry}: {reason}. recurrl trains on {supported}. Wrap the environment to have one of "
                "these."
            )


def spec_of(space: Space, count: int) -> TensorSpec:
    """The spec of the observations or actions of ``count`` environments."""
    return Composite({"all": _spec(space)}).expand(count)["all"]


def _spec(space: Any) -> TensorSpec:
    if isinstance(space, spaces.Dict):
        return Composite({key: _spec(entry) for key, entry in space.spaces.items()})
    dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
    if isinstance(space, spaces.Box):
        # Policies take a scalar as a vector of one entry.
        low, high = (torch.from_numpy(bound.reshape(space.shape or 1)) for bound in (space.low, space.high))
        return box_spec(low, high)
    if isinstance(space, spaces.MultiBinary):
        return Binary(space.shape[-1], space.shape, dtype=dtype)
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), dtype=dtype)
    if len(set(space.nvec)) > 1:
        return MultiCategorical(space.nvec, dtype=dtype)
    return Categorical(int(space.nvec[0]), space.shape, dtype=dtype)


def box_spec(low: Tensor, high: Tensor) -> TensorSpec:
    """The spec of numbers between bounds, which may be infinite."""
    if low.dtype.is_floating_point and bool(low.isinf().all() and high.isinf().all()):
        return Unbounded(low.shape, dtype=low.dtype, device=low.device)
    return Bounded(low, high, dtype=low.dtype, device=low.device)


def space_of(spec: TensorSpec) -> Space:
    """The Gymnasium space of an unbatched spec."""
    if isinstance(spec, Composite):
        return spaces.Dict({key: space_of(entry) for key, entry in spec.items()})
    sizes = choices(spec)
    if sizes is not None:
        return spaces.MultiDiscrete(list(sizes)) if spec.shape else spaces.Discrete(sizes[0])
    if isinstance(spec, Binary) or spec.dtype == torch.bool:
        return spaces.MultiBinary(list(spec.shape))
    low, high = (bound.cpu().numpy() for bound in bounds_of(spec))
    return spaces.Box(low, high, dtype=low.dtype.type)


def dicts_to_tuples(space: Space, value: Any) -> Any:
    """The action, with dicts turned back into tuples where ``space`` has tuples."""
    if isinstance(space, spaces.Tuple):
        return tuple(dicts_to_tuples(part, value[str(i)]) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Dict):
        return {key: dicts_to_tuples(part, value[key]) for key, part in space.spaces.items()}
    return value


def as_dicts(value: Any) -> Any:
    """An observation or action with its tuples replaced by dicts with the keys ``0``, ``1``, and so on."""
    if isinstance(value, tuple):
        value = {str(i): part for i, part in enumerate(value)}
    return {key: as_dicts(part) for key, part in value.items()} if isinstance(value, Mapping) else value


def _unsupported_observation(space: spaces.Box) -> str | None:
    """The reason why no encoder supports an observation of numbers; None if one does."""
    dims, image = len(space.shape), space.dtype == np.uint8 or (space.low.min() >= 0 and space.high.max() <= 1)
    if dims > 3:
        return f"it has {dims} dimensions"
    if dims == 3 and not image:
        return "it has three dimensions but is not an image"
    return None


def _unsupported_action(space: spaces.Box) -> str | None:
    """The reason why no head supports an action of numbers; None if one does."""
    if not np.issubdtype(space.dtype, np.floating):
        return "a Box of integers"
    return None if space.shape else "it has no dimensions; declare it with shape (1,)"


def _not_discrete(space: Space) -> str | None:
    if isinstance(space, spaces.MultiBinary):
        return None
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) != 1:
        return "it has several dimensions"
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return "it does not start at zero" if np.any(space.start) else None
    return "an empty dict" if isinstance(space, spaces.Dict) else f"a {type(space).__name__}"
