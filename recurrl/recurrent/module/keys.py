"""Input and output keys of a recurrent module."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict import unravel_key_list
from tensordict.utils import NestedKey

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
        ValueError: both or neither are given, or the number is wrong for the cell; the message names ``owner``.
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
        ValueError: both or neither are given, or the number is wrong for the cell; the message names ``owner``.
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
