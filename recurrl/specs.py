"""The kinds of observations and actions that TorchRL's specs describe."""

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec

from recurrl.keys import KeyPath, path_of


def leaves_of(spec: TensorSpec) -> list[tuple[KeyPath, TensorSpec]]:
    """The tensors' specs within a spec, with their paths; the spec of a tensor has the path ``()``."""
    if not isinstance(spec, Composite):
        return [((), spec)]
    return [(path_of(key), leaf) for key, leaf in spec.items(include_nested=True, leaves_only=True)]


def choices(spec: TensorSpec) -> tuple[int, ...] | None:
    """The number of values of each choice of a discrete or multi-discrete observation or action; None for others."""
    if isinstance(spec, MultiCategorical):
        return tuple(int(size) for size in spec.nvec)
    if isinstance(spec, Categorical) and not isinstance(spec, Binary):
        # TorchRL stacks the specs of entries that have equally many values.
        return (int(spec.space.n),) * spec.shape.numel()
    return None


def limit_of(spec: TensorSpec) -> int | tuple[int, ...] | None:
    """The number of values that each number of an observation or action can take; None if unlimited."""
    if isinstance(spec, MultiCategorical):
        return choices(spec)
    return int(spec.space.n) if isinstance(spec, Categorical) else None


def is_image(spec: TensorSpec) -> bool:
    """True for images: bytes with two or three dimensions, or numbers from 0 to 1 with three."""
    dims = len(spec.shape)
    if spec.dtype == torch.uint8:
        return dims in (2, 3)
    return dims == 3 and isinstance(spec, Bounded) and bool((spec.space.low >= 0).all() & (spec.space.high <= 1).all())


def bounds_of(spec: TensorSpec) -> tuple[Tensor, Tensor]:
    """The bounds of numbers, in their dtype; infinite, or the largest integers, where there are none."""
    if isinstance(spec, Bounded):
        return spec.space.low, spec.space.high
    is_float = spec.dtype.is_floating_point
    ends = (-torch.inf, torch.inf) if is_float else (torch.iinfo(spec.dtype).min, torch.iinfo(spec.dtype).max)
    low, high = (torch.full(spec.shape, end, dtype=spec.dtype, device=spec.device) for end in ends)
    return low, high


def is_continuous(action: TensorSpec | Tensor | TensorDictBase) -> bool:
    """True if any part of an action, or of the actions that a spec describes, is continuous."""
    parts = action.values(True, True) if isinstance(action, Composite | TensorDictBase) else [action]
    return any(part.dtype.is_floating_point for part in parts)
