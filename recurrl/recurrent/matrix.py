"""Cells with a matrix as memory, which keys write to and queries read from.

Shape legend: N heads, K key size, V value size, X size of a projected input, O output size.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from torch import Tensor

from recurrl.recurrent.cell import Cell, States, Weights


class Access(NamedTuple):
    """What one step, or each of many, does to the memories."""

    query: Tensor
    """``[..., N, K]``."""
    key: Tensor
    """``[..., N, K]``."""
    value: Tensor
    """``[..., N, V]``."""
    keep: Tensor
    """The fraction that is kept of a memory, ``[..., N]``."""
    correct: Tensor | None = None
    """The delta rule: the fraction by which what the key reads moves towards the value, ``[..., N]``; None adds the
    value to it instead.
    """


class MatrixCell(Cell):
    """A cell with a memory ``S`` ``[K, V]`` in each head, of which it defines the access and the output.

    ``S' = αS + k·eᵀ`` with ``e = v``, or ``e = β(v − (αS)ᵀk)`` by the delta rule; read as ``y = S'ᵀq``.

    Args:
        hidden_size: features of the output, O.
        heads: memories, N.
        key_size: K.
        value_size: V.
    """

    def __init__(self, hidden_size: int, heads: int = 4, key_size: int = 16, value_size: int = 16) -> None:
        self.hidden_size, self.heads, self.key_size, self.value_size = hidden_size, heads, key_size, value_size

    @abstractmethod
    def access(self, weights: Weights, x: Tensor) -> tuple[Access, Tensor]:
        """The access, and what ``read`` needs of the input; for one step or for many: x is ``[..., X]``."""

    @abstractmethod
    def read(self, weights: Weights, rest: Tensor, y: Tensor) -> Tensor:
        """The output ``[..., O]`` from what the queries read, ``[..., N, V]``."""

    def states(self) -> dict[str, tuple[int, ...]]:
        """The memories."""
        return {"": (self.heads, self.key_size, self.value_size)}

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        """One step."""
        (q, k, v, keep, correct), rest = self.access(weights, x_BX)
        memory = keep.unsqueeze(-1).unsqueeze(-1) * states[0]
        if correct is not None:
            v = correct.unsqueeze(-1) * (v - (k.unsqueeze(-2) @ memory).squeeze(-2))
        memory = memory + k.unsqueeze(-1) * v.unsqueeze(-2)
        return self.read(weights, rest, (q.unsqueeze(-2) @ memory).squeeze(-2)), (memory,)
