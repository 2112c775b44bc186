"""Storage of one iteration's frames, cut into slices, and their sampling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement


class SliceBuffer:
    """Cuts rows into slices of ``slice_len`` steps and hands out minibatches of whole slices.

    The unit of storage is the slice, so that sampling without replacement sees every frame exactly once an epoch,
    wherever episodes begin and end.

    Args:
        slices: how many slices an iteration has.
        slice_len: steps a slice.
        minibatch_slices: slices a minibatch; must divide ``slices``.
        device: where the frames are kept.
    """

    def __init__(self, slices: int, slice_len: int, minibatch_slices: int, device: torch.device) -> None:
        if slices % minibatch_slices != 0:
            raise ValueError(f"{slices} slices do not divide into minibatches of {minibatch_slices}.")
        self.slice_len = slice_len
        self._buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(slices, device=device),
            sampler=SamplerWithoutReplacement(drop_last=False, shuffle=True),
            batch_size=minibatch_slices,
        )

    def fill(self, batch_NT: TensorDictBase, keys: Sequence[str]) -> None:
        """Replaces the content by the given entries of rows ``[N, T]``."""
        rows, steps = batch_NT.batch_size
        if steps % self.slice_len != 0:
            raise ValueError(f"Rows of {steps} steps do not divide into slices of {self.slice_len}.")
        slices = batch_NT.select(*keys).reshape(rows * (steps // self.slice_len), self.slice_len)
        self._buffer.empty()
        self._buffer.extend(slices)

    def epoch(self) -> Iterator[TensorDictBase]:
        """Minibatches ``[minibatch_slices, slice_len]`` that together hold every frame once, in random order."""
        for _ in range(len(self._buffer) // self._buffer.batch_size):
            yield self._buffer.sample()


def segment_ends(batch_NT: TensorDictBase, slice_len: int) -> Tensor:
    """``[N, T]``: true where an episode ends, or the slice of ``slice_len`` steps that the row is cut into."""
    ends_NT: Tensor = batch_NT["next", "done"].squeeze(-1).clone()
    ends_NT[:, slice_len - 1 :: slice_len] = True
    return ends_NT
