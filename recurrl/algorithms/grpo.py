"""Group-relative policy optimisation for control, without a critic: the group's mean return is the baseline.

Shao et al. 2024, https://arxiv.org/abs/2402.03300. The wider clip range above 1 is from DAPO, Yu et al. 2025,
https://arxiv.org/abs/2503.14476.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice, B rows or slices.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

from recurrl.algorithms.advantages import advantage_metrics
from recurrl.algorithms.algorithm import Algorithm
from recurrl.algorithms.group_advantages import EPISODE_LOSS_STEPS, add_group_advantages
from recurrl.algorithms.importance import clipped_surrogate, kl_from_log_ratio, log_range, mean_of
from recurrl.algorithms.metrics import Losses
from recurrl.config import GRPOConfig, TrainConfig
from recurrl.errors import require
from recurrl.keys import ACTION, ADVANTAGE, LOG_PROB, LOSS_MASK
from recurrl.policy import Policy
from recurrl.policy.policy import SequenceOutput

REF_LOG_PROB = "ref_log_prob"


class GRPO(Algorithm):
    """GRPO: advantages relative to a group of episodes, and optionally a KL penalty towards a reference policy."""

    options: GRPOConfig
    log_clip_range: tuple[float, float]

    def __init__(self, options: GRPOConfig, policy: Policy, config: TrainConfig) -> None:
        super().__init__(options, policy, config)
        self.log_clip_range = log_range(options.clip_epsilon, options.clip_epsilon_high)
        # A tensor, because a compiled loss treats Python numbers as constants.
        self.entropy_coeff = nn.Buffer(next(policy.parameters()).new_tensor(options.entropy_coeff), persistent=False)
        self.reference = deepcopy(policy).requires_grad_(False) if options.kl_to_ref_coeff else None
        self.iterations = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def prepare(self, rows_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes advantages, the loss mask and the reference policy's log-probabilities; anneals the entropy bonus.

        Every ``ref_refresh_iterations`` iterations the policy is copied to the reference first.
        """
        options = self.options
        require(
            self.reference is not None or not options.kl_to_ref_coeff,
            f"algorithm.kl_to_ref_coeff must stay 0 in a run that began with 0 (got {options.kl_to_ref_coeff}): it "
            "has no reference policy. Begin with a small one.",
        )
        # Again, because a callback may change these options.
        self.log_clip_range = log_range(options.clip_epsilon, options.clip_epsilon_high)
        self.entropy_coeff.fill_(self.annealed(options.entropy_coeff, options.entropy_final_fraction))
        metrics = add_group_advantages(rows_NT, reward_NT, options)
        if self.reference is not None:
            every = options.ref_refresh_iterations
            if every is not None and int(self.iterations) % every == 0:
                self.reference.load_state_dict(self.policy.state_dict())
            # Rows begin with a reset, so the reference starts from zero states, not from the policy's.
            with torch.no_grad():
                output = self.reference.sequence(*self.reference.inputs(rows_NT))
                rows_NT.set(REF_LOG_PROB, output.distribution.log_prob(rows_NT[ACTION]))
        self.iterations.add_(1)
        return {**metrics, **advantage_metrics(rows_NT[ADVANTAGE][rows_NT[LOSS_MASK]])}

    def loss(self, slices_SK: TensorDictBase, output: SequenceOutput) -> Losses:
        """GRPO's loss of a minibatch."""
        return grpo_loss(
            output.distribution,
            slices_SK,
            self.log_clip_range,
            self.entropy_coeff,
            self.options.aggregation,
            self.options.kl_to_ref_coeff,
        )


def grpo_loss(
    distribution: Distribution,
    data: Mapping[str, Any] | TensorDictBase,
    log_clip_range: tuple[float, float],
    entropy_coeff: Tensor | float | None,
    aggregation: str,
    kl_to_ref_coeff: float,
    samples_mc_entropy: int = 1,
) -> Losses:
    """The clipped surrogate without a critic, over unmasked steps, with a penalty on the KL from a reference.

    For a step with advantage A, ratio ρ = π(a) / π_behaviour(a), and q = π_ref(a) / π(a)::

        objective  = −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)
        entropy    = −entropy_coeff · H(π)
        kl_to_ref  = kl_to_ref_coeff · (q − 1 − log q)

    each averaged over steps. With ``kl_to_ref_coeff`` 0 the KL is left out. Metrics are means over unmasked steps.

    Args:
        distribution: the distribution of the actions ``[B, T]``.
        data: the rollout's entries, with ``advantage`` ``[B, T, 1]`` and ``loss_mask`` (bool of that shape; without it,
            every step counts). Some options need ``ref_log_prob`` ``[B, T]`` or ``episode_loss_steps`` ``[B, T, 1]``,
            the number of unmasked steps in the step's episode.
        log_clip_range: the clip range of log ρ, see :func:`~recurrl.algorithms.importance.log_range`.
        entropy_coeff: weight of the entropy; None leaves it out.
        aggregation: ``step`` weights all steps equally; ``episode`` weights all episodes equally, and the steps within
            each. Its weights come from ``episode_loss_steps``, so an episode may be spread over several minibatches.
        kl_to_ref_coeff: weight of the KL from the reference policy, whose log-probabilities are ``ref_log_prob``.
        samples_mc_entropy: samples for estimating an entropy without a closed form.

    Raises:
        KeyError: an entry is missing.
        ValueError: the policy returns more than one log-probability per step.
    """
    advantage, old = data[ADVANTAGE], data[LOG_PROB].unsqueeze(-1)
    log_ratio = distribution.log_prob(data[ACTION]).unsqueeze(-1) - old
    mask = data[LOSS_MASK] if LOSS_MASK in data else torch.ones_like(advantage, dtype=torch.bool)
    weight = mask.to(log_ratio.dtype)
    if aggregation == "episode":
        weight = weight / data[EPISODE_LOSS_STEPS].clamp(min=1)
    terms = {"objective": _mean(-clipped_surrogate(log_ratio, advantage, log_clip_range), weight)}
    metrics = {}
    if entropy_coeff is not None:
        metrics["entropy"] = entropy = _entropy(distribution, samples_mc_entropy).unsqueeze(-1)
        terms["entropy"] = _mean(-entropy_coeff * entropy, weight)
    if kl_to_ref_coeff:
        metrics["kl_to_ref"] = kl = kl_from_log_ratio(data[REF_LOG_PROB].view_as(old) - (old + log_ratio))
        terms["kl_to_ref"] = _mean(kl_to_ref_coeff * kl, weight)
    means = {f"policy/{name}": mean_of(value.detach(), mask) for name, value in metrics.items()}
    return Losses(terms, means, log_ratio.detach(), mask, weight.sum())


def _mean(value: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean; zero if all weights are. Values of weight zero are ignored, even NaN."""
    total = (torch.where(weight > 0, value, 0.0) * weight).sum()
    return total / torch.where(weight.sum() > 0, weight.sum(), 1.0)


def _entropy(distribution: Distribution, samples: int) -> Tensor:
    """The entropy, estimated from ``samples`` samples if it has no closed form."""
    try:
        return distribution.entropy()
    except NotImplementedError:
        shape = torch.Size([samples])
        drawn = distribution.rsample(shape) if distribution.has_rsample else distribution.sample(shape)
        return -distribution.log_prob(drawn).mean(0)


make = GRPO
