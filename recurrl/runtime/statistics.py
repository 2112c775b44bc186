"""Statistics of samples, those of all ranks together."""

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


def summary(samples: Tensor) -> Summary:
    """The statistics of samples; the deviation is that of the samples themselves."""
    if world().size > 1:
        return _summary_of_all(samples)
    if not samples.numel():
        return Summary(*[math.nan] * 4)
    values = samples.mean(), samples.std(correction=0), samples.min(), samples.max()
    return Summary(*map(float, values))


def _summary_of_all(samples: Tensor) -> Summary:
    ends = (samples.min(), samples.max()) if samples.numel() else (torch.inf, -torch.inf)
    lowest, highest = world().gathered(torch.tensor([float(end) for end in ends])).unbind(1)
    count, mean, square = moments(samples.reshape(-1))
    if not count:
        return Summary(*[math.nan] * 4)
    return Summary(float(mean), float(square / count) ** 0.5, float(lowest.min()), float(highest.max()))


def mean_and_std(samples: Tensor) -> tuple[Tensor, Tensor]:
    """The mean, and the unbiased standard deviation."""
    if world().size == 1:
        return samples.mean(), samples.std()
    count, mean, square = moments(samples.reshape(-1))
    return mean.to(samples.dtype), (square / (count - 1)).sqrt().to(samples.dtype)


def variance(samples: Tensor) -> Tensor:
    """The unbiased variance."""
    if world().size == 1:
        return samples.var()
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
    counts, means, squares = world().gathered(own).unbind(1)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total.clamp(min=1)
    square = (squares + counts * (means - mean).square()).sum(0)
    return total.flatten()[0], mean, square
