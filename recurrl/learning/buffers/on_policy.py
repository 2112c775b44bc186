"""Storage of one iteration's frames, cut into slices, and their sampling.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from recurrl.config import BufferConfig


class SliceBuffer:
    """Cuts rows into slices of ``slice_len`` steps and hands out minibatches of whole slices.

    The unit of storage is the slice, so that an epoch in random order sees every frame exactly once, wherever episodes
    begin and end.

    Args:
        slices: how many slices an iteration has.
        slice_len: steps a slice.
        minibatch_slices: slices a minibatch; must divide ``slices``.
    """

    def __init__(self, slices: int, slice_len: int, minibatch_slices: int) -> None:
        if slices % minibatch_slices != 0:
            raise ValueError(f"{slices} slices cannot be split into minibatches of {minibatch_slices}.")
        self.slice_len = slice_len
        self._minibatch_slices = minibatch_slices

    def fill(self, batch_NT: TensorDictBase, keys: Sequence[NestedKey]) -> None:
        """Replaces the content by the given entries of rows ``[N, T]``, which are not copied."""
        rows, steps = batch_NT.batch_size
        if steps % self.slice_len != 0:
            raise ValueError(f"Rows of {steps} steps cannot be split into slices of {self.slice_len}.")
        self._slices_SK = batch_NT.select(*keys).reshape(rows * (steps // self.slice_len), self.slice_len)

    def epoch(self) -> Iterator[TensorDictBase]:
        """Minibatches ``[minibatch_slices, slice_len]`` that together hold every frame once, in random order.

        They are copies, to be changed at will; their entry ``index`` says which of the slices each step is of.
        """
        order_S = torch.randperm(len(self._slices_SK), device=self._slices_SK.device)
        # One gather an epoch; the minibatches are views of it.
        for index, minibatch in zip(
            order_S.split(self._minibatch_slices),
            self._slices_SK[order_S].split(self._minibatch_slices),
            strict=True,
        ):
            yield minibatch.set("index", index.unsqueeze(1).expand(minibatch.batch_size))


def make(options: BufferConfig, slices: int, slice_len: int, minibatch_slices: int) -> SliceBuffer:
    """A buffer of one iteration's slices."""
    return SliceBuffer(slices, slice_len, minibatch_slices)


def segment_ends(batch_NT: TensorDictBase, slice_len: int) -> Tensor:
    """``[N, T]``: true where an episode ends, or the slice of ``slice_len`` steps that the row is cut into."""
    ends_NT: Tensor = batch_NT["next", "done"].squeeze(-1).clone()
    ends_NT[:, slice_len - 1 :: slice_len] = True
    return ends_NT
