"""Running statistics of observations and of rewards.

They change between iterations only, so that what the update sees is what the rollout saw.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recurrl.errors import NonFiniteError


class RunningMoments(nn.Module):
    """Mean and variance of everything seen so far, by the parallel update of Chan, Golub and LeVeque (1979).

    Kept in float64, so that they stay right over billions of samples. Until the first update the mean is 0 and the
    variance 1.

    Args:
        size: features; the statistics are per feature.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, samples: Tensor) -> None:
        """Takes samples ``[..., size]`` into account.

        Raises:
            NonFiniteError: one of them is not finite; the statistics are as they were.
        """
        flat = samples.reshape(-1, self.mean.shape[0]).double()
        variance, mean = torch.var_mean(flat, 0, correction=0)
        if not (mean.isfinite() & variance.isfinite()).all():
            raise NonFiniteError(_place_of_largest(samples))
        total = self.count + flat.shape[0]
        weight = flat.shape[0] / total
        difference = mean - self.mean
        self.variance.copy_((1 - weight) * self.variance + weight * variance + weight * (1 - weight) * difference**2)
        self.mean.add_(weight * difference)
        self.count.copy_(total)


def _place_of_largest(samples: Tensor) -> str:
    """Where among samples ``[..., size]`` the first of the largest is; NaN is the largest of all."""
    at = torch.unravel_index(samples.double().abs().nan_to_num(torch.inf).argmax(), samples.shape)
    names = ("environment", "step") if samples.ndim == 3 else ()
    place = " and ".join(f"{name} {int(i)}" for name, i in zip(names, at, strict=False))
    return (
        f"Running statistics received the value {float(samples[at])}{f' of {place} of the batch' if place else ''}, "
        "which would corrupt them permanently. Have the environment clip its observations and rewards."
    )


class ObservationNormalizer(nn.Module):
    """``(observation − mean) / std`` by the statistics of the observations seen, clipped to ±``limit``.

    The statistics in use are replaced each time as many observations again have been seen. Replacing them moves the
    policy under the learner's feet, so it happens a logarithmic number of times, not at every iteration.

    Args:
        size: features of the observation.
        limit: in standard deviations.
    """

    mean: Tensor
    scale: Tensor
    replaced_at: Tensor

    def __init__(self, size: int, limit: float = 10.0) -> None:
        super().__init__()
        self.moments = RunningMoments(size)
        self.limit = limit
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        self.register_buffer("replaced_at", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def observe(self, observations: Tensor) -> None:
        """Takes observations ``[..., size]`` into account, from the next doubling of their number on."""
        self.moments.update(observations)
        if self.moments.count >= 2 * self.replaced_at:
            self.mean.copy_(self.moments.mean)
            self.scale.copy_((self.moments.variance + 1e-8).rsqrt())
            self.replaced_at.copy_(self.moments.count)

    def forward(self, observation: Tensor) -> Tensor:
        """Normalised observations."""
        return ((observation - self.mean) * self.scale).clamp(-self.limit, self.limit)
