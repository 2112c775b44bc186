"""Storage of one iteration's frames as slices, and their sampling.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice.
"""

from collections.abc import Iterator, Sequence

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from recurrl.config import BufferConfig


class SliceBuffer:
    """Cuts rows into slices of ``slice_len`` steps and yields minibatches of whole slices.

    The slice is the unit of storage, so that an epoch in random order contains every frame exactly once, wherever
    episodes begin and end.

    Args:
        options: as configured.
        slice_len: steps per slice.
        minibatch_slices: slices per minibatch; must divide the slices of an iteration.
    """

    def __init__(self, options: BufferConfig, slice_len: int, minibatch_slices: int) -> None:
        self.options = options
        self.slice_len = slice_len
        self.minibatch_slices = minibatch_slices

    def joined(self, batch_NT: TensorDictBase) -> TensorDictBase:
        """The rows to learn from after a rollout ``[N, T]``: the rollout itself."""
        return batch_NT

    def fill(self, batch_NT: TensorDictBase, keys: Sequence[NestedKey]) -> None:
        """Replaces the content by entries of rows ``[N, T]``, which are not copied.

        Raises:
            ValueError: the rows cannot be cut into slices, or the slices into minibatches.
        """
        rows, steps = batch_NT.batch_size
        if steps % self.slice_len != 0 or rows * steps // self.slice_len % self.minibatch_slices != 0:
            raise ValueError(
                f"{rows} rows of {steps} steps cannot be cut into slices of {self.slice_len} steps and minibatches of "
                f"{self.minibatch_slices} slices."
            )
        slices_SK = batch_NT.select(*keys).reshape(-1, self.slice_len)
        index_S = torch.arange(len(slices_SK), device=slices_SK.device)
        self.slices_SK = slices_SK.set("index", index_S.unsqueeze(1).expand(slices_SK.batch_size))

    def order(self) -> Tensor:
        """The indices of an epoch's slices, in their order."""
        return torch.randperm(len(self.slices_SK), device=self.slices_SK.device)

    def epoch(self) -> Iterator[TensorDictBase]:
        """Minibatches ``[minibatch_slices, slice_len]`` of the slices in :meth:`order`.

        They are copies, which may be changed. Their entry ``index`` is the index of each step's slice.
        """
        order_S = self.order()
        # One gather per epoch; the minibatches are views of it. Indexing the TensorDict takes twice as long.
        gathered_SK = self.slices_SK.apply(
            lambda entry_SK: entry_SK.index_select(0, order_S), batch_size=[len(order_S), self.slice_len]
        )
        yield from gathered_SK.split(self.minibatch_slices)


make = SliceBuffer
