"""Importance ratios of two policies: PPO's surrogate, and estimates of the KL and of the effective sample size.

A log-ratio is log π(a) − log π_collecting(a), where a is an action of the collecting policy.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def check_one_a_step(log_ratio: Tensor, shape: Sequence[int]) -> None:
    """Rejects a policy that returns several log-probabilities per action, one for each of its parts.

    Args:
        log_ratio: of a minibatch.
        shape: of its advantages, ``[B, T, 1]``.

    Raises:
        ValueError: the log-ratios have another shape.
    """
    if tuple(log_ratio.shape) != tuple(shape):
        raise ValueError(
            f"The policy returns log-probabilities of shape {tuple(log_ratio.shape[:-1])} for steps of shape "
            f"{tuple(shape[:-1])}. A loss needs one per step: sum over an action's parts, for example with torch's "
            "Independent."
        )


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """PPO's surrogate, min(ρ A, clip(ρ, 1 − low, 1 + high) A), and a mask of the ρ outside that range.

    Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7; with two bounds, Yu et al. 2025,
    https://arxiv.org/abs/2503.14476.
    """
    floor, ceiling = (-low).log1p().to(log_ratio), high.log1p().to(log_ratio)
    # The minimum is clipped from above only where the advantage is positive, and from below where it is negative.
    is_positive = advantage > 0
    bounds = torch.where(is_positive, -torch.inf, floor), torch.where(is_positive, ceiling, torch.inf)
    gain = log_ratio.clamp(*bounds).exp() * advantage
    return gain, log_ratio.detach().clamp(floor, ceiling) != log_ratio


def kl_from_log_ratio(log_ratio: Tensor) -> Tensor:
    """An estimate of KL(collecting policy ‖ policy) from one action: ρ − 1 − log ρ for the ratio ρ.

    Unbiased, as is its gradient, and never negative (k3 of Schulman 2020, http://joschu.net/blog/kl-approx.html).
    """
    return log_ratio.expm1() - log_ratio


def effective_sample_fraction(log_ratio: Tensor, mask: Tensor | None = None) -> Tensor:
    """(Σρ)² / (n Σρ²) over the n ratios: 1 if all are equal, 1/n if one outweighs all others.

    Args:
        log_ratio: without gradient.
        mask: of the ratios that count; None for all.
    """
    # Dividing by the largest ratio cancels out, and keeps exponentials from overflowing.
    weight = (log_ratio - log_ratio.max()).exp()
    count: int | Tensor = weight.numel()
    if mask is not None:
        weight, count = weight.masked_fill(~mask, 0.0), mask.sum()
    return weight.sum().square() / (weight.square().sum() * count).clamp(min=torch.finfo(weight.dtype).tiny)
