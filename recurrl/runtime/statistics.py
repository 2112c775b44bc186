"""Statistics of samples, over all ranks."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from recurrl.runtime.ranks import world


class Summary(NamedTuple):
    """Statistics of samples; NaN if there are none."""

    mean: float
    std: float
    min: float
    max: float


def masked(samples: Tensor, mask: Tensor | None) -> Tensor:
    """The samples ``[B]`` where a mask of their shape is true; without a mask, all of them in their shape."""
    return samples if mask is None else samples[mask]


def summary(samples: Tensor) -> Summary:
    """The statistics of the samples of all ranks; ``std`` divides by their number."""
    count, mean, square = moments(samples.reshape(-1))
    if not count:
        return Summary(*[math.nan] * 4)
    ends = torch.stack([samples.min(), -samples.max()]) if samples.numel() else samples.new_full((2,), math.inf)
    lowest, highest = world().all_gather(ends).amin(0)
    return Summary(*torch.stack([mean, (square / count).sqrt(), lowest.double(), -highest.double()]).tolist())


def mean_and_std(samples: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the sample standard deviation (n − 1; 0 for a single sample) of the samples of all ranks."""
    count, mean, square = moments(samples.reshape(-1))
    return mean.to(samples.dtype), (square / (count - 1).clamp(min=1)).sqrt().to(samples.dtype)


def variance(samples: Tensor) -> Tensor:
    """The unbiased variance of the samples of all ranks."""
    count, _, square = moments(samples.reshape(-1))
    return square / (count - 1)


def moments(samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The number of samples ``[B, ...]`` of all ranks, their mean, and the sum of squared differences from it.

    In float64, by the parallel update of Chan, Golub and LeVeque (1979).
    """
    batch = samples.double()
    count = batch.new_tensor(len(batch))
    mean = batch.sum(0) / count.clamp(min=1)
    own = torch.stack([count.expand_as(mean), mean, (batch - mean).square().sum(0)])
    counts, means, squares = world().all_gather(own).unbind(1)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total.clamp(min=1)
    square = (squares + counts * (means - mean).square()).sum(0)
    return total.flatten()[0], mean, square
