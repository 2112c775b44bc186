"""Keys of a recurrent module."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict import unravel_key_list
from tensordict.utils import NestedKey

from recurrl.keys import IS_INIT, path_of


def read_keys(
    owner: str, states: Sequence[NestedKey], in_key: NestedKey | None, in_keys: Sequence[NestedKey] | None
) -> list[NestedKey]:
    """The keys of the input, of each state (by default ``states``), and of ``is_init``, which is added if missing.

    Raises:
        ValueError: not exactly one of ``in_key`` and ``in_keys`` is None, or a key is missing; names ``owner``.
        TypeError: a key has the wrong type.
    """
    keys = _keys("in_key", in_key, in_keys, states)
    if not keys or path_of(keys[-1])[-1] != IS_INIT:
        keys.append(IS_INIT)
    if len(keys) != 2 + len(states):
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


def _keys(
    name: str, single: NestedKey | None, several: Sequence[NestedKey] | None, states: Sequence[NestedKey]
) -> list[NestedKey]:
    if (single is None) == (several is None):
        raise ValueError(f"Pass either {name} or {name}s. Got {name}={single!r} and {name}s={several!r}.")
    return list(unravel_key_list([single, *states] if single is not None else several))
