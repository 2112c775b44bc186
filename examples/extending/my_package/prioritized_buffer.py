"""A buffer: slices with large advantages are drawn more often."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor

from recurrl.buffers.on_policy import SliceBuffer
from recurrl.config import BufferConfig
from recurrl.config.options import FRACTION, option
from recurrl.keys import ADVANTAGE


@dataclass
class PrioritizedConfig(BufferConfig):
    """A buffer's options, and one more."""

    exponent: float = option("of the mean absolute advantage; 0: all slices are equally likely", FRACTION, default=0.5)


class PrioritizedBuffer(SliceBuffer):
    """Draws slices with replacement, with probabilities proportional to a power of their mean absolute advantage."""

    def __init__(self, options: PrioritizedConfig, slice_len: int, minibatch_slices: int) -> None:
        super().__init__(options, slice_len, minibatch_slices)
        self.exponent = options.exponent

    def order(self, slices_SK: TensorDictBase) -> Tensor:
        """The indices of an epoch's slices, in their order."""
        priority_S = slices_SK[ADVANTAGE].abs().flatten(1).mean(1).clamp(min=1e-6) ** self.exponent
        return torch.multinomial(priority_S, len(priority_S), replacement=True)
