"""Running statistics of observations, rewards and advantages.

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


class RunningScale(nn.Module):
    """The root mean square of the samples seen, the last batches weighing most; 1 until the first.

    Args:
        rate: weight of a new batch in the mean square.
    """

    square: Tensor
    weight: Tensor

    def __init__(self, rate: float = 0.1) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("square", torch.zeros((), dtype=torch.float64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, samples: Tensor) -> None:
        """Takes a batch into account; one that is not finite, whose gradient steps are skipped, is left out."""
        square = samples.double().square().mean()
        rate = torch.where(square.isfinite(), self.rate, 0.0)
        self.square.lerp_(square.nan_to_num(), rate)
        self.weight.lerp_(torch.ones_like(self.weight), rate)

    @property
    def value(self) -> Tensor:
        """The scale."""
        # The weight is what is missing of the first batches' in an average that began at zero.
        return torch.where(self.weight > 0, self.square / self.weight, 1.0).sqrt()


class RewardScaler(nn.Module):
    """Scales rewards for learning: by a constant, and by the running deviation of the discounted return if asked.

    Dividing by the deviation of ``Σ γᵏ r`` rather than of ``r`` keeps the value target near unit scale whatever the
    discount (Engstrom et al. 2020, https://arxiv.org/abs/2005.12729, appendix A).

    Args:
        num_envs: environments, N.
        gamma: discount per step.
        scale: the constant.
        running: divide by the running deviation too.
    """

    discounted_return: Tensor

    def __init__(self, num_envs: int, gamma: float, scale: float, running: bool) -> None:
        super().__init__()
        self.gamma = gamma
        self.scale = scale
        self.moments = RunningMoments(1) if running else None
        self.register_buffer("discounted_return", torch.zeros(num_envs))

    @torch.no_grad()
    def forward(self, reward_NT: Tensor, is_init_NT: Tensor) -> Tensor:
        """Scaled rewards ``[N, T]`` of one iteration, whose own returns enter the statistics first.

        Args:
            reward_NT: the environments' rewards.
            is_init_NT: where episodes start, whether or not the episode before came to an end: after a fault, and in a
                resumed run, collection may start over in mid-episode.
        """
        scaled = reward_NT * self.scale
        if self.moments is None:
            return scaled
        returns = []
        for reward, is_init in zip(scaled.unbind(1), is_init_NT.unbind(1), strict=True):
            self.discounted_return.masked_fill_(is_init, 0.0).mul_(self.gamma).add_(reward)
            returns.append(self.discounted_return.clone())
        self.moments.update(torch.stack(returns, 1).unsqueeze(-1))
        deviation = (self.moments.variance + 1e-8).sqrt().to(scaled.dtype)
        return (scaled / deviation).clamp(-10, 10)
