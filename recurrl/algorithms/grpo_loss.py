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
AGGREGATIONS = ("step", "episode")


class GRPOTerms(nn.Module):
    """The clipped surrogate without a critic, over unmasked steps, with a penalty on the KL from a reference.

    For a step with advantage A, ratio ρ = π(a) / π_behaviour(a), and q = π_ref(a) / π(a)::

        objective  = −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)
        entropy    = −entropy_coeff · H(π)
        kl_to_ref  = kl_to_ref_coeff · (q − 1 − log q)

    each averaged over steps. A KL whose coefficient is zero is left out. Metrics are means over unmasked steps.

    Args:
        clip_epsilon: ε, or the pair (ε_low, ε_high).
        entropy_bonus: add the entropy term.
        samples_mc_entropy: samples for estimating an entropy without a closed form.
        entropy_coeff: weight of the entropy.
        aggregation: ``step`` weights all steps equally, ``episode`` the episodes, and the steps of each. The weights of
            ``episode`` come from ``episode_loss_steps``, so an episode may be spread over several minibatches.
        kl_to_ref_coeff: weight of the KL from the reference policy, whose log-probabilities are read.
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
        aggregation: str = "step",
        kl_to_ref_coeff: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require(
            aggregation in AGGREGATIONS,
            f"aggregation must be one of {', '.join(AGGREGATIONS)} (got {aggregation!r}).",
        )
        low, high = clip_epsilon if isinstance(clip_epsilon, tuple) else (clip_epsilon, clip_epsilon)
        self.surrogate = ClippedSurrogate(low, high)
        self.entropy_coeff = nn.Buffer(torch.tensor(entropy_coeff, dtype=dtype), persistent=False)
        self.entropy_bonus, self.samples_mc_entropy = entropy_bonus, samples_mc_entropy
        self.aggregation, self.kl_to_ref_coeff = aggregation, kl_to_ref_coeff

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
        weight = mask.to(log_ratio.dtype)
        if self.aggregation == "episode":
            weight = weight / data[EPISODE_LOSS_STEPS].clamp(min=1)
        terms = {"objective": _mean(-self.surrogate(log_ratio, advantage), weight)}
        metrics = {}
        if self.entropy_bonus:
            entropy = entropy_of(distribution, self.samples_mc_entropy).unsqueeze(-1)
            terms["entropy"] = _mean(-self.entropy_coeff * entropy, weight)
            metrics["policy/entropy"] = entropy
        if self.kl_to_ref_coeff:
            kl = kl_from_log_ratio(data[REF_LOG_PROB].view_as(old) - (old + log_ratio))
            terms["kl_to_ref"] = _mean(self.kl_to_ref_coeff * kl, weight)
            metrics["policy/kl_to_ref"] = kl
        means = {
            name: masked_mean(value.detach().unsqueeze(0), mask.unsqueeze(0)).squeeze(0)
            for name, value in metrics.items()
        }
        return Losses(terms, means, log_ratio.detach(), mask, weight.sum())


def _mean(value: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean; zero if no step counts, where the values may be anything."""
    total = (torch.where(weight > 0, value, 0.0) * weight).sum()
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
