"""Importance ratios: PPO's surrogate, and estimates of the KL and of the effective sample size.

A log-ratio is log π(a) − log π_behaviour(a), for an action of the behaviour policy.

Shape legend: S slices, K steps of a slice, M minibatches.
"""

import math

import torch
from torch import Tensor, nn

from recurrl.errors import require


class ClippedSurrogate(nn.Module):
    """PPO's surrogate, min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A).

    Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7; with two bounds, Yu et al. 2025,
    https://arxiv.org/abs/2503.14476.

    Args:
        low: ε_low.
        high: ε_high.

    Attributes:
        log_range: the log-ratios that are clipped to.

    Raises:
        ConfigError: ``low`` is not in [0, 1), or ``high`` is below 0.
    """

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        require(0 <= low < 1, f"clip_epsilon must be at least 0 and below 1 (got {low}).")
        require(high >= 0, f"The upper clip_epsilon must be at least 0 (got {high}).")
        self.log_range = math.log1p(-low), math.log1p(high)

    def forward(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        """The surrogate of each step.

        Where A > 0 the minimum is min(ρ, 1 + ε_high) A, else max(ρ, 1 − ε_low) A. Clipping log ρ rather than ρ keeps
        ratios from overflowing.
        """
        low, high = self.log_range
        outside = torch.where(advantage > 0, log_ratio > high, log_ratio < low)
        bounded = torch.where(outside, log_ratio.detach().clamp(low, high), log_ratio)
        return bounded.exp() * advantage


def check_one_a_step(log_ratio: Tensor, advantage: Tensor) -> None:
    """Rejects a policy that returns several log-probabilities per action, one for each of its parts.

    Raises:
        ValueError: log-ratios and advantages have different shapes.
    """
    if log_ratio.shape != advantage.shape:
        raise ValueError(
            f"The policy returns log-probabilities of shape {tuple(log_ratio.shape)} for steps of shape "
            f"{tuple(advantage.shape)}. A loss needs one per step: sum over an action's parts, for example with "
            "torch's Independent."
        )


def kl_from_log_ratio(log_ratio: Tensor) -> Tensor:
    """An estimate of KL(behaviour policy ‖ policy) from one action: ρ − 1 − log ρ for the ratio ρ.

    Unbiased, as is its gradient, and never negative (k3 of Schulman 2020, http://joschu.net/blog/kl-approx.html).
    """
    return log_ratio.expm1() - log_ratio


def ratio_metrics(
    log_ratio_MSK: Tensor, mask_MSK: Tensor | None = None, log_clip_range: tuple[float, float] | None = None
) -> dict[str, Tensor]:
    """Metrics ``[M]`` of the ratios of minibatches.

    Args:
        log_ratio_MSK: without gradient.
        mask_MSK: the steps that count; None for all.
        log_clip_range: what a clipped objective clips to; None for other objectives.
    """
    metrics = {"policy/kl": masked_mean(kl_from_log_ratio(log_ratio_MSK), mask_MSK)}
    if log_clip_range is not None:
        low, high = log_clip_range
        outside = (log_ratio_MSK < low) | (log_ratio_MSK > high)
        metrics["policy/clip_fraction"] = masked_mean(outside.to(log_ratio_MSK.dtype), mask_MSK)
    metrics["policy/effective_sample_size"] = effective_sample_fraction(log_ratio_MSK, mask_MSK)
    return metrics


def masked_mean(value_MSK: Tensor, mask_MSK: Tensor | None = None) -> Tensor:
    """The mean ``[M]`` over each minibatch's unmasked steps; zero if there are none."""
    if mask_MSK is None:
        return value_MSK.flatten(1).mean(1)
    return torch.where(mask_MSK, value_MSK, 0.0).flatten(1).sum(1) / mask_MSK.flatten(1).sum(1).clamp(min=1)


def effective_sample_fraction(log_ratio_MSK: Tensor, mask_MSK: Tensor | None = None) -> Tensor:
    """(Σρ)² / (n Σρ²) over the n ratios of each minibatch: 1 if all are equal, 1/n if one outweighs all others."""
    log_ratio = log_ratio_MSK.flatten(1)
    # Dividing by the largest ratio cancels out, and keeps exponentials from overflowing.
    weight = (log_ratio - log_ratio.amax(1, keepdim=True)).exp()
    count: int | Tensor = weight.shape[1]
    if mask_MSK is not None:
        mask = mask_MSK.flatten(1)
        weight, count = weight.where(mask, 0.0), mask.sum(1)
    return weight.sum(1).square() / (weight.square().sum(1) * count).clamp(min=torch.finfo(weight.dtype).tiny)
