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
    clipped = log_ratio.clamp((-low).log1p(), high.log1p())
    gain = torch.minimum(log_ratio.exp() * advantage, clipped.exp() * advantage)
    return gain, clipped != log_ratio


def kl_from_log_ratio(log_ratio: Tensor) -> Tensor:
    """An estimate of KL(collecting policy ‖ policy) from one action: ρ − 1 − log ρ for the ratio ρ.

    Unbiased, as is its gradient, and never negative (k3 of Schulman 2020, http://joschu.net/blog/kl-approx.html).
    """
    return log_ratio.expm1() - log_ratio


def effective_sample_fraction(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """(Σρ)² / (n Σρ²) over the n unmasked ratios: 1 if all are equal, 1/n if one outweighs all others."""
    # Dividing by the largest ratio cancels out, and keeps exponentials from overflowing.
    weight = (log_ratio.masked_fill(~mask, -torch.inf) - log_ratio.max()).exp()
    return weight.sum() ** 2 / ((weight**2).sum() * mask.sum()).clamp(min=torch.finfo(weight.dtype).tiny)
