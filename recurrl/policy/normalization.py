"""Running statistics of observations and of rewards.

They change between iterations only, so that the update sees what the rollout saw.

Shape legend: B batch (any number of dimensions), N environments, T steps of a row.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recurrl.errors import NonFiniteError
from recurrl.recurrent.linear_recurrence import scan_from_zero
from recurrl.runtime import statistics
from recurrl.runtime.ranks import world


def update_statistics(module: nn.Module, *arguments: Any) -> None:
    """Calls a module's method ``update_statistics``, which adds observations to running statistics, if it has one."""
    if (own := getattr(module, "update_statistics", None)) is not None:
        own(*arguments)


class RunningMoments(nn.Module):
    """Mean and variance of all samples so far, by the parallel update of Chan, Golub and LeVeque (1979).

    Kept in float64, to stay accurate over billions of samples. Until the first update the mean is 0 and the variance 1.

    Args:
        shape: the shape of a sample; each of its entries has separate statistics.
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
            NonFiniteError: a sample is not finite; the statistics are unchanged.
        """
        count, mean, square = statistics.moments(samples.reshape(-1, *self.mean.shape))
        if not (mean.isfinite() & square.isfinite()).all():
            raise NonFiniteError(
                "Running statistics received NaN or Inf, or numbers close to it, which would corrupt them permanently. "
                "Have the environment clip its observations and rewards."
            )
        total = self.count + count
        weight, difference = count / total.clamp(min=1), mean - self.mean
        variance = (1 - weight) * self.variance + weight * square / count.clamp(min=1)
        self.variance.copy_(variance + weight * (1 - weight) * difference**2)
        self.mean.add_(weight * difference)
        self.count.copy_(total)


class ObservationNormalizer(nn.Module):
    """``(observation − mean) / std`` by running statistics, clipped to ±10.

    The statistics in use are replaced whenever the number of observations has doubled. The network that reads the
    normalised observations is then rescaled, if it can be, so that the policy stays as it is; other networks' outputs
    change with the statistics.

    Args:
        shape: the shape of an observation; each of its entries has separate statistics.
        dtype: the floating-point type in which the mean is subtracted, by default the default one. Numbers that vary
            little beside their size, such as seconds since 1970, need float64.

    Attributes:
        MAX_GROWTH: the network is not rescaled for entries whose standard deviation has grown by more than this factor.
            That happens early, and weights multiplied by as much can keep a policy from learning
            (docs/decisions/0002-statistics-change-between-iterations.md).
    """

    MAX_GROWTH = 1.5

    def __init__(self, *shape: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.moments = RunningMoments(*shape)
        self.mean = nn.Buffer(torch.zeros(shape, dtype=dtype))
        self.scale = nn.Buffer(torch.ones(shape))
        self.replaced_at = nn.Buffer(torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update_statistics(self, observations: Tensor, reader: nn.Module | None = None) -> None:
        """Adds observations ``[B, *shape]``. They take effect once the total number has doubled.

        Args:
            observations: the observations.
            reader: the network that reads the normalised observations. Its method ``rescale_input(factor, shift)``, if
                it has one, is called when statistics are replaced, but not the first time: a network is initialised for
                normalised inputs.
        """
        self.moments.update(observations)
        if self.moments.count < 2 * self.replaced_at:
            return
        mean, scale = self.moments.mean.to(self.mean), (self.moments.variance + 1e-8).rsqrt().to(self.scale)
        rescale: Any = getattr(reader, "rescale_input", None)
        if rescale is not None and self.replaced_at > 0:
            factor, shift = self.scale / scale, ((mean - self.mean) * self.scale).to(self.scale)
            little = factor <= self.MAX_GROWTH
            rescale(torch.where(little, factor, 1.0), torch.where(little, shift, 0.0))
        self.mean.copy_(mean)
        self.scale.copy_(scale)
        self.replaced_at.copy_(self.moments.count)

    def forward(self, observation: Tensor) -> Tensor:
        """Normalised observations, in the default floating-point type."""
        centred = (observation.to(self.mean.dtype) - self.mean).to(self.scale.dtype)
        return (centred * self.scale).clamp(-10, 10)


class RunningScale(nn.Module):
    """An exponential moving average of the root mean square of samples; 1 until the first batch.

    Attributes:
        RATE: weight of a new batch in the mean square.
    """

    RATE = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Buffer(torch.zeros((), dtype=torch.float64))
        self.weight = nn.Buffer(torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, samples: Tensor) -> None:
        """Adds a batch to the average, unless it holds NaN or Inf: gradient steps on such a batch are skipped too."""
        squares = samples.double().square()
        total, count = world().all_gather(torch.stack([squares.sum(), squares.new_tensor(squares.numel())])).sum(0)
        square = total / count
        rate = torch.where(square.isfinite(), self.RATE, 0.0)
        self.square.lerp_(square.nan_to_num(), rate)
        self.weight.lerp_(torch.ones_like(self.weight), rate)

    @property
    def value(self) -> Tensor:
        """The scale."""
        # Corrects the bias of an average that starts at zero, as Adam does.
        return torch.where(self.weight > 0, self.square / self.weight, 1.0).sqrt()


class RewardScaler(nn.Module):
    """Multiplies rewards by a constant; optionally divides by the running standard deviation of the discounted return.

    The divisor is at least 1, so only ``scale`` makes rewards larger. Divided rewards are clipped to ±10.

    Dividing by the standard deviation of ``Σ γᵏ r`` rather than of ``r`` keeps the value target near unit scale for any
    discount (Engstrom et al. 2020, https://arxiv.org/abs/2005.12729, appendix A).

    Args:
        num_envs: number of environments, N.
        gamma: discount per step.
        scale: the constant.
        running: also divide by the running standard deviation.
    """

    def __init__(self, num_envs: int, gamma: float, scale: float, running: bool) -> None:
        super().__init__()
        self.gamma = gamma
        self.scale = scale
        self.moments = RunningMoments(1) if running else None
        self.discounted_return = nn.Buffer(torch.zeros(num_envs))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Restores the statistics. With another number of environments, episodes restart and so do their returns."""
        returns = state_dict.get("discounted_return")
        if isinstance(returns, Tensor) and returns.shape != self.discounted_return.shape:
            state_dict = {**state_dict, "discounted_return": torch.zeros_like(self.discounted_return)}
        return super().load_state_dict(state_dict, strict, assign)

    @torch.no_grad()
    def update_statistics(self, reward_NT: Tensor, is_init_NT: Tensor, mask_NT: Tensor | None = None) -> None:
        """Adds an iteration to the statistics.

        Args:
            reward_NT: the environments' rewards.
            is_init_NT: true at episode starts, including those after an episode was abandoned by an error or a resume.
            mask_NT: true where a step counts; None for all.
        """
        if self.moments is None:
            return
        carried_NT = self.gamma * (~is_init_NT).to(self.discounted_return.dtype)
        reward_NT = reward_NT * self.scale
        reward_NT[:, 0] += carried_NT[:, 0] * self.discounted_return
        returns_NT = scan_from_zero(carried_NT, reward_NT)
        self.moments.update(statistics.masked(returns_NT, mask_NT).unsqueeze(-1))
        self.discounted_return.copy_(returns_NT[:, -1])

    @torch.no_grad()
    def forward(self, reward: Tensor) -> Tensor:
        """Scaled rewards."""
        scaled = reward * self.scale
        if self.moments is None:
            return scaled
        # At least 1: rare rewards barely vary, and scaled up they would swamp the trunk that actor and critic share.
        return (scaled / self.moments.variance.sqrt().clamp(min=1.0).to(scaled.dtype)).clamp(-10, 10)
