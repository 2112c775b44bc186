"""GRPO's loss for control: no critic, the other episodes of the group are the baseline.

Shao et al. 2024, https://arxiv.org/abs/2402.03300. The wider clip range above 1 is from DAPO, Yu et al. 2025,
https://arxiv.org/abs/2503.14476.

Shape legend: B rows or slices, N environments, T steps.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

from recurrl.errors import require
from recurrl.keys import ACTION, LOG_PROB
from recurrl.losses.advantage import ADVANTAGE, EPISODE_LOSS_STEPS, LOSS_MASK
from recurrl.losses.deferred import Deferred, Metrics
from recurrl.losses.importance import check_one_a_step, clipped_surrogate, kl_from_log_ratio, mean, ratio_metrics
from recurrl.losses.policy_loss import Losses, add_coefficients

REF_LOG_PROB = "ref_log_prob"
AGGREGATIONS = ("step", "token_mean", "prompt_mean", "episode", "none")


class GRPOTerms(nn.Module):
    """The clipped objective without a critic, over the unmasked steps, with penalties on two KLs.

    For a step with advantage A, ratio ρ = π(a) / π_collecting(a), and q = π_ref(a) / π(a)::

        objective        = −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)
        entropy          = −entropy_coeff · H(π)
        kl_to_ref        = kl_to_ref_coeff · (q − 1 − log q)
        kl_to_inference  = kl_to_inference_coeff · (1/ρ − 1 + log ρ)

    each aggregated as configured. A KL whose coefficient is zero is left out. Metrics are means over unmasked steps.

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
        kl_to_ref_coeff: weight of the KL from the reference policy, whose log-probabilities are read; 0 for none.
        kl_to_inference_coeff: weight of the KL from the policy that collected.
        kl_mask_threshold: steps with (log ρ)² / 2 above this are masked in all terms.

    Attributes:
        reads: the entries of a minibatch that :meth:`forward` reads.

    Raises:
        ValueError: an option is out of range.
    """

    clip_epsilon_low: Tensor
    clip_epsilon_high: Tensor
    entropy_coeff: Tensor

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
    ) -> None:
        super().__init__()
        require(reduction in ("none", "mean", "sum"), f"reduction={reduction!r}: choose none, mean or sum.")
        require(aggregation in AGGREGATIONS, f"aggregation={aggregation!r}: choose one of {', '.join(AGGREGATIONS)}.")
        self.entropy_bonus = entropy_bonus
        self.reduction = "none" if aggregation == "none" else reduction
        self.aggregation = aggregation
        self.kl_to_ref_coeff = kl_to_ref_coeff
        self.kl_to_inference_coeff = kl_to_inference_coeff
        self._samples_mc_entropy = samples_mc_entropy
        self._kl_mask_threshold = kl_mask_threshold
        add_coefficients(self, clip_epsilon, entropy_coeff=entropy_coeff)
        self.reads = [ACTION, LOG_PROB, ADVANTAGE, LOSS_MASK]
        self.reads += [EPISODE_LOSS_STEPS] if aggregation == "episode" else []
        self.reads += [REF_LOG_PROB] if kl_to_ref_coeff else []

    def forward(self, distribution: Distribution, value: object, data: Mapping[str, Any] | TensorDictBase) -> Losses:
        """The losses.

        Args:
            distribution: of the actions ``[B, T]``.
            value: not used, there is no critic.
            data: the rollout's entries, with ``advantage`` ``[B, T, 1]`` and ``loss_mask`` (bool of that shape; without
                it, every step counts). Some options need ``ref_log_prob`` ``[B, T]`` or ``episode_loss_steps``
                ``[B, T, 1]``, the number of unmasked steps in the step's episode.

        Raises:
            KeyError: an entry is missing.
            ValueError: the policy returns more than one log-probability per step.
        """
        advantage, old = data[ADVANTAGE], data[LOG_PROB].unsqueeze(-1)
        log_ratio = distribution.log_prob(data[ACTION]).unsqueeze(-1) - old
        check_one_a_step(log_ratio, advantage.shape)
        mask = data[LOSS_MASK] if LOSS_MASK in data else torch.ones_like(advantage, dtype=torch.bool)
        weight = self._weight(log_ratio, mask, data)
        gain, outside = clipped_surrogate(log_ratio, advantage, self.clip_epsilon_low, self.clip_epsilon_high)
        terms = {"objective": self._aggregated(-gain, weight)}
        metrics = ratio_metrics(log_ratio.detach(), outside, mask)
        if self.entropy_bonus:
            entropy = entropy_of(distribution, self._samples_mc_entropy).unsqueeze(-1)
            terms["entropy"] = self._aggregated(-self.entropy_coeff * entropy, weight)
            metrics["policy/entropy"] = Deferred(mean, (entropy.detach(), mask))
        kls = {}
        if self.kl_to_ref_coeff:
            kls["kl_to_ref"] = kl_from_log_ratio(data[REF_LOG_PROB].view_as(old) - (old + log_ratio))
        if self.kl_to_inference_coeff:
            kls["kl_to_inference"] = kl_from_log_ratio(-log_ratio)
        for name, kl in kls.items():
            terms[name] = self._aggregated(getattr(self, f"{name}_coeff") * kl, weight)
            metrics[f"policy/{name}"] = Deferred(mean, (kl.detach(), mask))
        counted = weight.sum()
        of_terms = torch.full_like(counted, len(weight)) if self.aggregation == "prompt_mean" else counted
        return Losses(terms, Metrics(metrics), (of_terms, mask.sum().to(counted)))

    def _weight(self, log_ratio: Tensor, mask: Tensor, data: Mapping[str, Any] | TensorDictBase) -> Tensor:
        """The weight of each step in the terms."""
        if self._kl_mask_threshold is not None:
            mask = mask & (0.5 * log_ratio**2 <= self._kl_mask_threshold)
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
