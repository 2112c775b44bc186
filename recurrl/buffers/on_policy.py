"""Cuts rows into slices and yields minibatches of them.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice, R rows.
"""

from collections.abc import Iterator

import torch
from tensordict import TensorDictBase
from torch import Tensor

from recurrl.config import BufferConfig


class SliceBuffer:
    """Learns from each rollout alone, in slices of ``slice_len`` steps and minibatches of whole slices.

    Minibatches consist of whole slices, so a shuffled epoch contains every frame exactly once, wherever episodes begin
    and end. A subclass may add rows (:meth:`extend`) or choose slices (:meth:`order`).

    Args:
        options: the buffer's options.
        slice_len: steps per slice; must divide the length of a row.
        minibatch_slices: slices per minibatch; must divide the number of slices of an iteration.
    """

    def __init__(self, options: BufferConfig, slice_len: int, minibatch_slices: int) -> None:
        self.options = options
        self.slice_len = slice_len
        self.minibatch_slices = minibatch_slices

    def extend(self, rollout_NT: TensorDictBase, signal_share: float) -> TensorDictBase:
        """Adds a rollout, and returns the rows ``[R, T]`` to learn from, which begin with it.

        Args:
            rollout_NT: new rows.
            signal_share: the share of signal in recent gradients, from 0 to 1, see
                :class:`~recurrl.algorithms.gradient_signal.GradientSignal`.
        """
        return rollout_NT

    def order(self, slices_SK: TensorDictBase) -> Tensor:
        """The indices of an epoch's slices, in the order in which they are learned from."""
        return torch.randperm(len(slices_SK), device=slices_SK.device)

    def minibatches(self, rows_NT: TensorDictBase) -> Iterator[TensorDictBase]:
        """An epoch of minibatches ``[minibatch_slices, slice_len]``.

        Minibatches are copies, which may be changed. They have all entries of the rows but ``next``, and the entry
        ``index``, the number of each step's slice.
        """
        slices_SK = rows_NT.exclude("next").reshape(-1, self.slice_len)
        index_S = torch.arange(len(slices_SK), device=slices_SK.device)
        slices_SK.set("index", index_S.unsqueeze(1).expand(slices_SK.batch_size))
        order_S = self.order(slices_SK)
        # One gather per epoch; the minibatches are views of it. Indexing the TensorDict takes twice as long.
        gathered_SK = slices_SK.apply(
            lambda entry_SK: entry_SK.index_select(0, order_S), batch_size=[len(order_S), self.slice_len]
        )
        yield from gathered_SK.split(self.minibatch_slices)


make = SliceBuffer
