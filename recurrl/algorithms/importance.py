"""Importance ratios: PPO's surrogate, and estimates of the KL and of the effective sample size.

A log-ratio is log π(a) − log π_old(a), for an action of the policy before the update.
"""

import math

import torch
from torch import Tensor

from recurrl.errors import ConfigError


def log_range(low: float, high: float | None) -> tuple[float, float]:
    """The range of log ρ for which the ratio ρ lies between 1 − low and 1 + high; None stands for ``low``.

    Raises:
        ConfigError: ``low`` is not in [0, 1), or ``high`` is below 0.
    """
    high = low if high is None else high
    if not 0 <= low < 1 or high < 0:
        raise ConfigError(f"clip_epsilon must be at least 0 and below 1, its high end at least 0 (got {low}, {high}).")
    return math.log1p(-low), math.log1p(high)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, log_clip_range: tuple[float, float]) -> Tensor:
    """PPO's surrogate of each step, min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A).

    Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7; with two bounds, Yu et al. 2025,
    https://arxiv.org/abs/2503.14476. Where A > 0 the minimum is min(ρ, 1 + ε_high) A, else max(ρ, 1 − ε_low) A.
    Clipping log ρ rather than ρ keeps ratios from overflowing.

    Args:
        log_ratio: log ρ.
        advantage: A, of the same shape.
        log_clip_range: the range that log ρ is clipped to, see :func:`log_range`.

    Raises:
        ValueError: the shapes differ, or the policy returns several log-probabilities per action.
    """
    check_shapes("clipped_surrogate", log_ratio=log_ratio, advantage=advantage)
    low, high = log_clip_range
    outside = torch.where(advantage > 0, log_ratio > high, log_ratio < low)
    bounded = torch.where(outside, log_ratio.detach().clamp(low, high), log_ratio)
    return bounded.exp() * advantage


def check_shapes(function: str, **tensors: Tensor | None) -> None:
    """Rejects tensors that do not all have one number per step in the same shape: torch would broadcast them silently.

    Args:
        function: the caller's name, for the error.
        tensors: the tensors by name, ``[S, K]`` or ``[S, K, 1]`` (or one dimension); None is left out.

    Raises:
        ValueError: with all shapes.
    """
    shapes = {tensor.shape for tensor in tensors.values() if tensor is not None}
    if len(shapes) > 1 or next(iter(shapes))[2:].numel() > 1:
        got = ", ".join(f"{name} {tuple(each.shape)}" for name, each in tensors.items() if each is not None)
        raise ValueError(
            f"The tensors of {function} must have one shape and one number per step (got {got}). Add a last dimension "
            "by unsqueeze(-1), also before combining [S, K] with [S, K, 1], or reduce one (mean, torch's Independent)."
        )


def kl_from_log_ratio(log_ratio: Tensor) -> Tensor:
    """An estimate of KL(π_old ‖ π) from one action: ρ − 1 − log ρ for the ratio ρ.

    Unbiased, as is its gradient, and never negative (k3 of Schulman 2020, http://joschu.net/blog/kl-approx.html). As
    GRPO's penalty, with π_ref / π for ρ and an action of π, its value estimates KL(π ‖ π_ref), but its gradient is that
    of KL(π_ref ‖ π).
    """
    return log_ratio.expm1() - log_ratio


def ratio_metrics(
    log_ratio: Tensor, mask: Tensor | None, log_clip_range: tuple[float, float] | None
) -> dict[str, Tensor]:
    """Metrics of the ratios of a minibatch, or of several.

    Args:
        log_ratio: ``[..., P]`` without gradient, of the P steps of each minibatch.
        mask: true for the steps that count; None for all.
        log_clip_range: the range that a clipped objective clips log-ratios to; None for other objectives.
    """
    metrics = {"policy/kl": mean_of(kl_from_log_ratio(log_ratio), mask, -1)}
    if log_clip_range is not None:
        low, high = log_clip_range
        outside = (log_ratio < low) | (log_ratio > high)
        metrics["policy/clip_fraction"] = mean_of(outside.to(log_ratio.dtype), mask, -1)
    metrics["policy/effective_sample_fraction"] = effective_sample_fraction(log_ratio, mask)
    return metrics


def mean_of(value: Tensor, mask: Tensor | None, dim: int | None = None) -> Tensor:
    """The mean over unmasked steps (all without a mask), along ``dim`` or all dimensions; zero if there are none.

    A mask of numbers weights the steps. Values of weight zero are ignored, even NaN.

    Raises:
        ValueError: there is more than one value per step, or the mask is of another shape.
    """
    check_shapes("mean_of", value=value, mask=mask)
    if mask is None:
        return value.mean(dim)
    weight = mask.sum(dim)
    return (torch.where(mask > 0, value, 0.0) * mask).sum(dim) / torch.where(weight > 0, weight, 1)


def effective_sample_fraction(log_ratio: Tensor, mask: Tensor | None) -> Tensor:
    """(Σρ)² / (n Σρ²) over the n unmasked ratios of each minibatch ``[..., P]``.

    It is 1 if all are equal, and 1/n if one outweighs all others.
    """
    if mask is not None:
        log_ratio = log_ratio.where(mask, -math.inf)
    # Dividing by the largest ratio cancels out, and keeps exponentials from overflowing.
    weight = (log_ratio - log_ratio.amax(-1, keepdim=True)).exp()
    mean, mean_square = mean_of(weight, mask, -1), mean_of(weight.square(), mask, -1)
    return mean.square() / mean_square.clamp(min=torch.finfo(weight.dtype).tiny)
