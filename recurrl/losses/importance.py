"""Ratios of two policies' probabilities: how far apart the policies are, and what samples of one tell of the other.

A log-ratio is log π(a) − log π_collecting(a), for an action that the collecting policy took.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_one_a_step(log_ratio: Tensor, shape: Sequence[int]) -> None:
    """Rejects a policy with several log-probabilities an action: its ratio would be that of no action.

    Args:
        log_ratio: of a minibatch.
        shape: of its advantages, ``[B, T, 1]``.

    Raises:
        ValueError: the log-ratios are of another shape.
    """
    if tuple(log_ratio.shape) != tuple(shape):
        raise ValueError(
            f"The policy returns log-probabilities of shape {tuple(log_ratio.shape[:-1])} for steps of shape "
            f"{tuple(shape[:-1])}. A loss needs one per step: sum over an action's parts, for example with torch's "
            "Independent."
        )


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """PPO's surrogate, min(ρ A, clip(ρ, 1 − low, 1 + high) A), and where ρ is outside of that range.

    Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7; with two bounds, Yu et al. 2025,
    https://arxiv.org/abs/2503.14476.
    """
    clipped = log_ratio.clamp((-low).log1p(), high.log1p())
    gain = torch.minimum(log_ratio.exp() * advantage, clipped.exp() * advantage)
    return gain, clipped != log_ratio


def kl_from_log_ratio(log_ratio: Tensor) -> Tensor:
    """An estimate of KL(collecting policy ‖ policy) from each action alone: ρ − 1 − log ρ for the ratio ρ.

    Without bias and never negative (Schulman 2020, http://joschu.net/blog/kl-approx.html, k3). Its gradient is without
    bias too.
    """
    return log_ratio.expm1() - log_ratio


def effective_sample_fraction(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """(Σρ)² / (n Σρ²) over the n log-ratios that count: 1 where all ratios are equal, 1/n where one outweighs all."""
    # Relative to the largest, which cancels, so that no exponential overflows.
    weight = (log_ratio.masked_fill(~mask, -torch.inf) - log_ratio.max()).exp()
    return weight.sum() ** 2 / ((weight**2).sum() * mask.sum()).clamp(min=torch.finfo(weight.dtype).tiny)
