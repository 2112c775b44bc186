"""TensorDict entries of a recurrent module, and its environment primer.

Shape legend: I input size, L layers, D directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from tensordict import TensorDictBase, unravel_key
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data import Unbounded
from torchrl.envs import TensorDictPrimer

Shapes = Sequence[tuple[int, ...]]
"""``[L·D, ...]`` of each state."""


def required_entry(owner: str, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
    """A required entry of a call.

    Raises:
        KeyError: the entry is missing; the message names ``owner``.
    """
    value = tensordict.get(key)
    if value is None:
        raise KeyError(
            f"{owner} needs the entry {key!r}, which is not in the TensorDict. (is_init comes from an InitTracker "
            "transform on the environment.)"
        )
    return cast(Tensor, value)


def stored_states(
    owner: str, tensordict: TensorDictBase, keys: Sequence[NestedKey], shapes: Shapes, x: Tensor
) -> tuple[Tensor, ...]:
    """The states ``[..., L·D, ...]`` for an input ``[..., I]``; zero if the TensorDict has none.

    Raises:
        KeyError: some states are missing but not all; the message names ``owner``.
    """
    found = [tensordict.get(key) for key in keys]
    if any(state is None for state in found) and any(state is not None for state in found):
        missing = [key for key, state in zip(keys, found, strict=True) if state is None]
        raise KeyError(f"{owner} got some of its states but not {missing}. Pass all of them or none.")
    return tuple(
        x.new_zeros(()).expand(*x.shape[:-1], *shape) if state is None else state.reshape(*x.shape[:-1], *shape)
        for state, shape in zip(found, shapes, strict=True)
    )


def primer(read: Sequence[NestedKey], written: Sequence[NestedKey], shapes: Shapes) -> TensorDictPrimer:
    """A transform that adds the states to an environment: specs, and zeros at resets.

    Raises:
        RuntimeError: a new state is not written where the next step reads it.
    """
    wanted = [unravel_key(("next", key)) for key in read]
    if written != wanted:
        raise RuntimeError(
            f"The states are read from {read} but written to {written}. For an environment to carry them from step to "
            f"step, they must be written to {wanted}."
        )
    specs = {key: Unbounded(shape=shape) for key, shape in zip(read, shapes, strict=True)}
    return TensorDictPrimer(specs, expand_specs=True)


def contiguous(data: TensorDictBase, keys: Iterable[NestedKey], inplace: bool) -> TensorDictBase:
    """``data``, or a shallow copy, with the existing entries among ``keys`` made contiguous."""
    present = set(data.keys(include_nested=True))
    wanted = {unravel_key(key) for key in keys}
    result = data if inplace else data.copy()
    return result.update(data.select(*(wanted & present)).contiguous(canonical=True))
