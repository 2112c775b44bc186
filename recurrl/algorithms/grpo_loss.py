"""GRPO's loss for control: no critic, the other episodes of the group are the baseline.

Shao et al. 2024, https://arxiv.org/abs/2402.03300. The wider clip range above 1 is from DAPO, Yu et al. 2025,
https://arxiv.org/abs/2503.14476.

Shape legend: B rows or slices, T steps.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

from recurrl.algorithms.algorithm import Losses
from recurrl.algorithms.group_advantages import EPISODE_LOSS_STEPS
from recurrl.algorithms.importance import ClippedSurrogate, check_one_a_step, kl_from_log_ratio, masked_mean
from recurrl.errors import require
from recurrl.keys import ACTION, ADVANTAGE, LOG_PROB, LOSS_MASK

REF_LOG_PROB = "ref_log_prob"
AGGREGATIONS = ("step", "token_mean", "prompt_mean", "episode", "none")


class GRPOTerms(nn.Module):
    """The clipped surrogate without a critic, over the unmasked steps, with penalties on two KLs.

    For a step with advantage A, ratio ρ = π(a) / π_behaviour(a), and q = π_ref(a) / π(a)::

        objective        = −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)
        entropy          = −entropy_coeff · H(π)
        kl_to_ref        = kl_to_ref_coeff · (q − 1 − log q)
        kl_to_inference  = kl_to_inference_coeff · (1/ρ − 1 + log ρ)

    each aggregated over steps. A KL whose coefficient is zero is left out. Metrics are means over unmasked steps.

    Args:
        clip_epsilon: ε, or the pair (ε_low, ε_high).
        entropy_bonus: add the entropy term.
        samples_mc_entropy: samples for estimating an entropy without a closed form.
        entropy_coeff: weight of the entropy.
        reduction: ``mean``; ``sum``; or ``none`` for terms ``[B, T, 1]``, zero at masked steps.
        aggregation: ``step``, in TorchRL ``token_mean``, weights all steps equally; ``prompt_mean`` the rows, and the
            steps of each; ``episode`` the episodes, and the steps of each. Its weights come from
            ``episode_loss_steps``, so an episode may be spread over several minibatches. ``none`` is
            ``reduction="none"``.
        kl_to_ref_coeff: weight of the KL from the reference policy, whose log-probabilities are read.
        kl_to_inference_coeff: weight of the KL from the behaviour policy.
        kl_mask_threshold: steps with (log ρ)² / 2 above this are masked in all terms.
        dtype: of the policy.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        entropy_bonus: bool = True,
        samples_mc_entropy: int = 1,
        entropy_coeff: float = 0.01,
        reduction: str = "mean",
        aggregation: str = "step",
        kl_to_ref_coeff: float = 0.0,
        kl_to_inference_coeff: float = 0.0,
        kl_mask_threshold: float | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require(reduction in ("none", "mean", "sum"), f"reduction must be none, mean or sum (got {reduction!r}).")
        require(
            aggregation in AGGREGATIONS,
            f"aggregation must be one of {', '.join(AGGREGATIONS)} (got {aggregation!r}).",
        )
        low, high = clip_epsilon if isinstance(clip_epsilon, tuple) else (clip_epsilon, clip_epsilon)
        self.surrogate = ClippedSurrogate(low, high, dtype)
        self.entropy_coeff = nn.Buffer(torch.tensor(entropy_coeff, dtype=dtype), persistent=False)
        self.entropy_bonus, self.samples_mc_entropy = entropy_bonus, samples_mc_entropy
        self.reduction = "none" if aggregation == "none" else reduction
        self.aggregation = aggregation
        self.kl_to_ref_coeff, self.kl_to_inference_coeff = kl_to_ref_coeff, kl_to_inference_coeff
        self.kl_mask_threshold = kl_mask_threshold

    def forward(self, distribution: Distribution, data: Mapping[str, Any] | TensorDictBase) -> Losses:
        """The losses.

        Args:
            distribution: of the actions ``[B, T]``.
            data: the rollout's entries, with ``advantage`` ``[B, T, 1]`` and ``loss_mask`` (bool of that shape; without
                it, every step counts). Some options need ``ref_log_prob`` ``[B, T]`` or ``episode_loss_steps``
                ``[B, T, 1]``, the number of unmasked steps in the step's episode.

        Raises:
            KeyError: an entry is missing.
            ValueError: the policy returns more than one log-probability per step.
        """
        advantage, old = data[ADVANTAGE], data[LOG_PROB].unsqueeze(-1)
        log_ratio = distribution.log_prob(data[ACTION]).unsqueeze(-1) - old
        check_one_a_step(log_ratio, advantage)
        mask = data[LOSS_MASK] if LOSS_MASK in data else torch.ones_like(advantage, dtype=torch.bool)
        weight = self._weight(log_ratio, mask, data)
        terms = {"objective": self._aggregated(-self.surrogate(log_ratio, advantage), weight)}
        metrics = {}
        if self.entropy_bonus:
            entropy = entropy_of(distribution, self.samples_mc_entropy).unsqueeze(-1)
            terms["entropy"] = self._aggregated(-self.entropy_coeff * entropy, weight)
            metrics["policy/entropy"] = entropy
        if self.kl_to_ref_coeff:
            kl = kl_from_log_ratio(data[REF_LOG_PROB].view_as(old) - (old + log_ratio))
            terms["kl_to_ref"] = self._aggregated(self.kl_to_ref_coeff * kl, weight)
            metrics["policy/kl_to_ref"] = kl
        if self.kl_to_inference_coeff:
            kl = kl_from_log_ratio(-log_ratio)
            terms["kl_to_inference"] = self._aggregated(self.kl_to_inference_coeff * kl, weight)
            metrics["policy/kl_to_inference"] = kl
        means = {
            name: masked_mean(value.detach().unsqueeze(0), mask.unsqueeze(0)).squeeze(0)
            for name, value in metrics.items()
        }
        return Losses(terms, means, log_ratio.detach(), mask, weight.sum())

    def _weight(self, log_ratio: Tensor, mask: Tensor, data: Mapping[str, Any] | TensorDictBase) -> Tensor:
        """The weight of each step in the terms."""
        if self.kl_mask_threshold is not None:
            mask = mask & (0.5 * log_ratio**2 <= self.kl_mask_threshold)
        weight = mask.to(log_ratio.dtype)
        if self.aggregation == "episode":
            return weight / data[EPISODE_LOSS_STEPS].clamp(min=1)
        return weight / weight.sum(-2, keepdim=True).clamp(min=1) if self.aggregation == "prompt_mean" else weight

    def _aggregated(self, value: Tensor, weight: Tensor) -> Tensor:
        """The weighted mean or sum of values ``[B, T, 1]``; or, without reduction, the unmasked values."""
        value = torch.where(weight > 0, value, 0.0)
        if self.reduction == "none":
            return value
        total = (value * weight).sum()
        if self.reduction == "sum":
            return total
        if self.aggregation == "prompt_mean":
            return total / weight.shape[:-2].numel()
        # If no step counts, the sum is zero, and so is the mean.
        return total / torch.where(weight.sum() > 0, weight.sum(), 1.0)


def entropy_of(distribution: Distribution, samples: int) -> Tensor:
    """The entropy, estimated from ``samples`` samples if it has no closed form."""
    try:
        entropy: Tensor = distribution.entropy()
    except NotImplementedError:
        shape = torch.Size([samples])
        drawn = distribution.rsample(shape) if distribution.has_rsample else distribution.sample(shape)
        entropy = -distribution.log_prob(drawn).mean(0)
    return entropy
