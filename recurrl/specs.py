"""The kinds of observations and actions that TorchRL's specs describe."""

import torch
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec

from recurrl.config.options import BOUNDED, CONTINUOUS, IMAGES, NO_IMAGES, NUMBERS, SINGLE_CONTINUOUS, Condition
from recurrl.keys import ACTION_MASK, PREVIOUS_ACTION, PREVIOUS_REWARD, path_of


def choices(spec: TensorSpec) -> tuple[int, ...] | None:
    """The number of values of each entry of a multi-discrete observation or action; None for other kinds."""
    if isinstance(spec, MultiCategorical):
        return tuple(int(size) for size in spec.nvec)
    if isinstance(spec, Categorical) and not isinstance(spec, Binary) and len(spec.shape) == 1:
        # TorchRL stacks the specs of entries that have equally many values.
        return (int(spec.space.n),) * spec.shape[0]
    return None


def is_image(spec: TensorSpec) -> bool:
    """True for images: bytes with two or three dimensions, or numbers from 0 to 1 with three."""
    dims = len(spec.shape)
    if spec.dtype == torch.uint8:
        return dims in (2, 3)
    if dims != 3 or not isinstance(spec, Bounded):
        return False
    return bool((spec.space.low >= 0).all() and (spec.space.high <= 1).all())


def finite_bounds(action: TensorSpec) -> Tensor:
    """True for each finite bound of a continuous action's entries, the lower ones before the upper ones."""
    if not isinstance(action, Bounded):
        return torch.zeros(2, *action.shape, dtype=torch.bool)
    return torch.stack([action.space.low, action.space.high]).isfinite()


def kinds(observation: TensorSpec, action: TensorSpec) -> set[Condition]:
    """The conditions of options that an environment's spaces meet.

    Args:
        observation: the spec of an unbatched observation.
        action: that of an action.
    """
    met = set()
    for path, spec in _leaves(observation):
        if path == (ACTION_MASK,):
            continue
        image = is_image(spec)
        if image or path not in ((PREVIOUS_ACTION,), (PREVIOUS_REWARD,)):
            met.add(IMAGES if image else NO_IMAGES)
        if not (image or isinstance(spec, Categorical) or path == (PREVIOUS_ACTION,)):
            met.add(NUMBERS)
    for path, spec in _leaves(action):
        if not isinstance(spec, Categorical):
            met |= {CONTINUOUS} if path else {CONTINUOUS, SINGLE_CONTINUOUS}
            met |= {BOUNDED} if finite_bounds(spec).any() else set()
    return met


def _leaves(spec: TensorSpec) -> list[tuple[tuple[str, ...], TensorSpec]]:
    """The specs of tensors within a spec, with their paths."""
    if not isinstance(spec, Composite):
        return [((), spec)]
    return [(path_of(key), leaf) for key, leaf in spec.items(include_nested=True, leaves_only=True)]
