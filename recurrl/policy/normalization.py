"""Running statistics of observations and of rewards.

They change between iterations only, so that the update sees what the rollout saw.

Shape legend: B batch (any number of dimensions).
"""

from typing import Any

import torch
from torch import Tensor, nn

from recurrl.errors import NonFiniteError
from recurrl.runtime import statistics
from recurrl.runtime.ranks import world


def observe(module: nn.Module, observation: Any) -> None:
    """Adds observations to the running statistics of a module, if it has a method ``observe``."""
    own: Any = getattr(module, "observe", None)
    if own is not None:
        own(observation)


class RunningMoments(nn.Module):
    """Mean and variance of all samples so far, by the parallel update of Chan, Golub and LeVeque (1979).

    Kept in float64, to stay accurate over billions of samples. Until the first update the mean is 0 and the variance 1.

    Args:
        shape: of a sample; each of its entries has statistics of its own.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(shape, dtype=torch.float64))
        self.variance = nn.Buffer(torch.ones(shape, dtype=torch.float64))
        self.count = nn.Buffer(torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, samples: Tensor) -> None:
        """Adds samples ``[B, *shape]``.

        Raises:
            NonFiniteError: one of them is not finite; the statistics are unchanged.
        """
        count, mean, variance = _moments(samples.reshape(-1, *self.mean.shape).double())
        if not (mean.isfinite() & variance.isfinite()).all():
            raise NonFiniteError(_largest(samples, samples.ndim - self.mean.ndim))
        total = self.count + count
        weight = count / total
        difference = mean - self.mean
        self.variance.copy_((1 - weight) * self.variance + weight * variance + weight * (1 - weight) * difference**2)
        self.mean.add_(weight * difference)
        self.count.copy_(total)


def _moments(batch: Tensor) -> tuple[float, Tensor, Tensor]:
    """The number of samples of all ranks, their mean and their variance."""
    if world().size == 1:
        variance, mean = torch.var_mean(batch, 0, correction=0)
        return len(batch), mean, variance
    count, mean, square = statistics.moments(batch)
    return float(count), mean, square / count


def _largest(samples: Tensor, batch_dims: int) -> str:
    """The error message for the first of the largest samples; NaN counts as the largest."""
    if world().size > 1 and samples.isfinite().all():
        return "Running statistics received NaN or Inf on another rank. Its error says where."
    at = torch.unravel_index(samples.double().abs().nan_to_num(torch.inf).argmax(), samples.shape)
    place = f" of environment {int(at[0])} and step {int(at[1])} of the batch" if batch_dims == 2 else ""
    return (
        f"Running statistics received the value {float(samples[at])}{place}, which would corrupt them permanently. "
        "Have the environment clip its observations and rewards."
    )


class ObservationNormalizer(nn.Module):
    """``(observation − mean) / std`` by running statistics, clipped to ±``limit``.

    The statistics in use are replaced whenever the number of observations has doubled. Replacing them changes the
    policy, so it happens a logarithmic number of times rather than at every iteration.

    Args:
        shape: of an observation; each of its entries has statistics of its own.
        limit: in standard deviations.
    """

    def __init__(self, *shape: int, limit: float = 10.0) -> None:
        super().__init__()
        self.moments = RunningMoments(*shape)
        self.limit = limit
        self.mean = nn.Buffer(torch.zeros(shape))
        self.scale = nn.Buffer(torch.ones(shape))
        self.replaced_at = nn.Buffer(torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def observe(self, observations: Tensor) -> None:
        """Adds observations ``[B, *shape]``, which take effect once their number has doubled."""
        self.moments.update(observations)
        if self.moments.count >= 2 * self.replaced_at:
            self.mean.copy_(self.moments.mean)
            self.scale.copy_((self.moments.variance + 1e-8).rsqrt())
            self.replaced_at.copy_(self.moments.count)

    def forward(self, observation: Tensor) -> Tensor:
        """Normalised observations, in the default floating-point type."""
        return ((observation.to(self.mean.dtype) - self.mean) * self.scale).clamp(-self.limit, self.limit)


class RunningScale(nn.Module):
    """An exponential moving average of the root mean square of samples; 1 until the first batch.

    Args:
        rate: weight of a new batch in the mean square.
    """

    def __init__(self, rate: float = 0.1) -> None:
        super().__init__()
        self.rate = rate
        self.square = nn.Buffer(torch.zeros((), dtype=torch.float64))
        self.weight = nn.Buffer(torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, samples: Tensor) -> None:
        """Takes a batch into account, unless it holds NaN or Inf: its gradient steps are skipped too."""
        square = world().gathered(samples.double().square().mean()).mean()
        rate = torch.where(square.isfinite(), self.rate, 0.0)
        self.square.lerp_(square.nan_to_num(), rate)
        self.weight.lerp_(torch.ones_like(self.weight), rate)

    @property
    def value(self) -> Tensor:
        """The scale."""
        # An average that starts at zero lacks this weight at first.
        return torch.where(self.weight > 0, self.square / self.weight, 1.0).sqrt()
