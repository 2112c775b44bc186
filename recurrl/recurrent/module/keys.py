"""Keys of a recurrent module, the TensorDict entries they name, and its environment primer.

Shape legend: I input size, L layers, D directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from tensordict import TensorDictBase, unravel_key, unravel_key_list
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data import Unbounded
from torchrl.envs import TensorDictPrimer

from recurrl.recurrent.cell import Cell

IS_INIT = "is_init"


def state_keys(cell: Cell) -> list[NestedKey]:
    """The default keys of a cell's states."""
    return [f"recurrent_state{suffix}" for suffix in cell.states()]


def read_keys(
    owner: str, states: Sequence[NestedKey], in_key: NestedKey | None, in_keys: Sequence[NestedKey] | None
) -> list[NestedKey]:
    """The keys of the input, of each state (by default ``states``), and of ``is_init``, which is added if missing.

    Raises:
        ValueError: not exactly one of ``in_key`` and ``in_keys`` is None, or a key is missing; names ``owner``.
        TypeError: a key has the wrong type.
    """
    keys = _keys("in_key", in_key, in_keys, states)
    expected = 1 + len(states)
    if len(keys) == expected and not _is_init_key(keys[-1]):
        keys = [*keys, IS_INIT]
    if len(keys) != expected + 1 or not _is_init_key(keys[-1]):
        raise ValueError(
            f"{owner} reads one input, {len(states)} state(s) and optionally 'is_init' last. Got in_keys={keys}."
        )
    return keys


def written_keys(
    owner: str, states: Sequence[NestedKey], out_key: NestedKey | None, out_keys: Sequence[NestedKey] | None
) -> list[NestedKey]:
    """The keys of the output and of each new state (by default ``states``).

    Raises:
        ValueError: not exactly one of ``out_key`` and ``out_keys`` is None, or a key is missing; names ``owner``.
        TypeError: a key has the wrong type.
    """
    keys = _keys("out_key", out_key, out_keys, states)
    if len(keys) != 1 + len(states):
        raise ValueError(f"{owner} writes one output and {len(states)} state(s). Got out_keys={keys}.")
    return keys


def _is_init_key(key: NestedKey) -> bool:
    return (key if isinstance(key, str) else key[-1]) == IS_INIT


def _keys(
    name: str, single: NestedKey | None, several: Sequence[NestedKey] | None, state_keys: Sequence[NestedKey]
) -> list[NestedKey]:
    if (single is None) == (several is None):
        raise ValueError(f"Pass either {name} or {name}s. Got {name}={single!r} and {name}s={several!r}.")
    return list(unravel_key_list([single, *state_keys] if single is not None else several))


Shapes = Sequence[tuple[int, ...]]
"""The shape ``[L·D, ...]`` of each state."""


def required_entry(owner: str, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
    """An entry of the TensorDict that the module cannot run without.

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
    states = [tensordict.get(key) for key in keys]
    missing = [key for key, state in zip(keys, states, strict=True) if state is None]
    if 0 < len(missing) < len(keys):
        raise KeyError(f"{owner} got some of its states but not {missing}. Pass all of them or none.")
    return tuple(
        x.new_zeros(()).expand(*x.shape[:-1], *shape) if state is None else state.reshape(*x.shape[:-1], *shape)
        for state, shape in zip(states, shapes, strict=True)
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
