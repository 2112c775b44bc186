"""Locations of faults in a batch, and the words for them in messages.

Shape legend: N environments, T steps of a row.
"""

from __future__ import annotations

from torch import Tensor

NOT_SEEN = "The update would not see what the rollout saw:"


def any_of(mask: Tensor) -> Tensor:
    """True where any entry is true, over the dimensions after the first two."""
    return mask.flatten(2).any(-1) if mask.ndim > 2 else mask


def first(wrong_NT: Tensor) -> tuple[int, int] | None:
    """Environment and step of the earliest true entry; None if no entry is true."""
    found = wrong_NT.T.nonzero()
    return None if len(found) == 0 else (int(found[0, 1]), int(found[0, 0]))


def place(n: int, t: int) -> str:
    """A location in words, to be followed by a verb."""
    return f"environment {n}, step {t},"
