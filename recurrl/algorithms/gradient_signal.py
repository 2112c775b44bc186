"""The share of signal in gradients, and the number of epochs that it justifies."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

ENOUGH_SIGNAL = 0.1
"""With this share of signal or more, an iteration takes all its epochs."""
AVERAGE_RATE = 0.05
"""Weight of a new value in the moving averages."""


class GradientSignal(nn.Module):
    """The share of signal in an epoch's mean gradient, estimated from how well the minibatch gradients agree.

    Let g₁ ... g_M be the clipped gradients of an epoch's M minibatches, ḡ their mean and G the gradient without
    noise. The dot product of two different gᵢ has the expectation |G|². The share is |G|² / E|ḡ|², which is 1 / (1
    + B / n) for the n frames of an epoch and the simple noise scale B of McCandlish et al. 2018,
    https://arxiv.org/abs/1812.06162. The estimate of |G|² from one epoch may be negative, so both expectations are
    exponential moving averages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.averages = nn.Buffer(torch.zeros(2, dtype=torch.float64))
        self._sum, self._squares, self._count = torch.zeros(3)

    def add(self, parameters: Iterable[nn.Parameter], is_counted: Tensor | float = 1.0) -> None:
        """Adds the gradient of a minibatch. A non-finite gradient voids the epoch.

        ``is_counted`` is 0 if its step was skipped, so that it does not count.
        """
        gradient = torch.cat([each.grad.flatten() for each in parameters if each.grad is not None])
        self._sum = self._sum + gradient
        self._squares = self._squares + gradient.square().sum()
        self._count = self._count + is_counted

    def end_epoch(self) -> None:
        """Updates the moving averages, unless the epoch had only one minibatch or a non-finite gradient."""
        square, count = self._sum.square().sum(), self._count
        # With a single minibatch this divides by zero.
        measured = torch.stack([(square - self._squares) / (count * (count - 1)), square / count**2]).double()
        rate = torch.where(measured.isfinite().all(), AVERAGE_RATE, 0.0)
        self.averages.lerp_(measured.nan_to_num(posinf=0.0, neginf=0.0), rate)
        self._sum, self._squares, self._count = torch.zeros(3)

    @property
    def share(self) -> float:
        """The share of signal, from 0 to 1; 1 until an epoch has been measured."""
        # Both averages start at zero, a bias that cancels in their ratio.
        signal, square = self.averages.tolist()
        return min(1.0, max(0.0, signal / square)) if square > 0 else 1.0

    def epochs(self, max_epochs: int, min_fraction: float) -> int:
        """The number of epochs to take, proportional to the square root of the signal share.

        It is at least ``min_fraction * max_epochs``.
        """
        fraction = min(1.0, math.sqrt(self.share / ENOUGH_SIGNAL))
        return max(1, round(max_epochs * max(min_fraction, fraction)))
