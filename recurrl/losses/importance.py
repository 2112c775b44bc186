"""Importance ratios of two policies: PPO's surrogate, and estimates of the KL and of the effective sample size.

A log-ratio is log π(a) − log π_collecting(a), where a is an action of the collecting policy.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from recurrl.losses.deferred import Deferred


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
    now = log_ratio.detach()
    clipped = now.clamp((-low).log1p(), high.log1p())
    outside = clipped != now
    # The minimum is clipped from above only where the advantage is positive, and from below where it is negative.
    gain = torch.where(outside & (now * advantage > 0), clipped, log_ratio).exp() * advantage
    return gain, outside


def kl_from_log_ratio(log_ratio: Tensor) -> Tensor:
    """An estimate of KL(collecting policy ‖ policy) from one action: ρ − 1 − log ρ for the ratio ρ.

    Unbiased, as is its gradient, and never negative (k3 of Schulman 2020, http://joschu.net/blog/kl-approx.html).
    """
    return log_ratio.expm1() - log_ratio


def ratio_metrics(log_ratio: Tensor, outside: Tensor | None = None, mask: Tensor | None = None) -> dict[str, Deferred]:
    """Metrics of a minibatch's ratios.

    ``kl_approx`` is the mean of −log ρ. ``kl``, the mean of ρ − 1 − log ρ, has less variance and is never negative.

    Args:
        log_ratio: ``[B, T, 1]``, without gradient.
        outside: true where the clipped objective clips; None for other objectives.
        mask: of the steps that count; None for all.
    """
    masked = () if mask is None else (mask,)
    metrics = {"kl_approx": Deferred(_kl_approx, (log_ratio, *masked)), "kl": Deferred(_kl, (log_ratio, *masked))}
    if outside is not None:
        metrics["clip_fraction"] = Deferred(_fraction, (outside, log_ratio, *masked))
    metrics["effective_sample_size"] = Deferred(effective_sample_fraction, (log_ratio, *masked))
    return {f"policy/{name}": metric for name, metric in metrics.items()}


def mean(value_MBT1: Tensor, mask_MBT1: Tensor | None = None) -> Tensor:
    """The mean ``[M]`` over each minibatch's unmasked steps; zero if there are none."""
    if mask_MBT1 is None:
        return value_MBT1.flatten(1).mean(1)
    return torch.where(mask_MBT1, value_MBT1, 0.0).flatten(1).sum(1) / mask_MBT1.flatten(1).sum(1).clamp(min=1)


def _kl_approx(log_ratio: Tensor, *mask: Tensor) -> Tensor:
    return -mean(log_ratio, *mask)


def _kl(log_ratio: Tensor, *mask: Tensor) -> Tensor:
    return mean(kl_from_log_ratio(log_ratio), *mask)


def _fraction(outside: Tensor, log_ratio: Tensor, *mask: Tensor) -> Tensor:
    return mean(outside.to(log_ratio.dtype), *mask)


def effective_sample_fraction(log_ratio_MBT1: Tensor, mask_MBT1: Tensor | None = None) -> Tensor:
    """(Σρ)² / (n Σρ²) over the n ratios of each minibatch: 1 if all are equal, 1/n if one outweighs all others."""
    log_ratio = log_ratio_MBT1.flatten(1)
    # Dividing by the largest ratio cancels out, and keeps exponentials from overflowing.
    weight = (log_ratio - log_ratio.amax(1, keepdim=True)).exp()
    count: int | Tensor = weight.shape[1]
    if mask_MBT1 is not None:
        mask = mask_MBT1.flatten(1)
        weight, count = weight.masked_fill(~mask, 0.0), mask.sum(1)
    return weight.sum(1).square() / (weight.square().sum(1) * count).clamp(min=torch.finfo(weight.dtype).tiny)
