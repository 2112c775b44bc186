"""Group-relative policy optimisation for control: no critic, the group's other episodes are the baseline.

Shao et al. 2024, https://arxiv.org/abs/2402.03300; the wider clip range above 1 and the dropping of groups without a
spread are DAPO's, Yu et al. 2025, https://arxiv.org/abs/2503.14476.

Shape legend: B rows or slices, N environments, T steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

from recurrl.config import TrainConfig, given
from recurrl.losses.advantage import ADVANTAGE, EPISODE_LOSS_STEPS, LOSS_MASK, add_group_advantages, advantage_metrics
from recurrl.losses.importance import check_one_a_step, clipped_surrogate, effective_sample_fraction, kl_from_log_ratio
from recurrl.losses.policy_loss import Losses, PolicyLoss, add_coefficients, options_of
from recurrl.losses.schedule import anneal
from recurrl.policy import ACTION, LOG_PROB, OBSERVATION, Policy
from recurrl.recurrent.module.keys import IS_INIT

REF_LOG_PROB = "ref_log_prob"


class GRPOTerms(nn.Module):
    """The clipped objective without a critic, over the steps that count, with penalties on two KLs.

    For a step with advantage A, ratio ρ = π(a) / π_collecting(a), and q = π_ref(a) / π(a)::

        objective        = −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)
        entropy          = −entropy_coeff · H(π)
        kl_to_ref        = kl_to_ref_coeff · (q − 1 − log q)
        kl_to_inference  = kl_to_inference_coeff · (1/ρ − 1 + log ρ)

    each aggregated as asked for; those of an option are there only with it. Metrics are means over the steps that
    count.

    Args:
        clip_epsilon: ε, or the pair (ε_low, ε_high).
        entropy_bonus: add the entropy.
        samples_mc_entropy: samples of the estimate where the entropy has no closed form.
        entropy_coeff: weight of the entropy.
        reduction: ``mean``; ``sum``; or ``none`` for terms ``[B, T]`` that are zero where a step does not count.
        aggregation: ``step`` (all steps weigh alike) or ``episode`` (all episodes do, and the steps of one alike).
            Weights come from ``episode_loss_steps``, so the parts of an episode may lie in several minibatches.
        kl_to_ref_coeff: weight of the KL from the reference policy, whose log-probabilities are read; 0 for none.
        kl_to_inference_coeff: weight of the KL from the policy that collected.
        kl_mask_threshold: steps with (log ρ)² / 2 above this are left out of all terms.

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
        low, high = clip_epsilon if isinstance(clip_epsilon, tuple) else (clip_epsilon, clip_epsilon)
        _require(
            0 <= low < 1 and high >= 0, f"clip_epsilon={clip_epsilon}: give numbers of 0 or above, the lower below 1."
        )
        _require(reduction in ("none", "mean", "sum"), f"reduction={reduction!r}: choose none, mean or sum.")
        _require(aggregation in ("step", "episode"), f"aggregation={aggregation!r}: choose step or episode.")
        self.entropy_bonus = entropy_bonus
        self.reduction = reduction
        self.aggregation = aggregation
        self.kl_to_ref_coeff = kl_to_ref_coeff
        self.kl_to_inference_coeff = kl_to_inference_coeff
        self._samples_mc_entropy = samples_mc_entropy
        self._kl_mask_threshold = kl_mask_threshold
        add_coefficients(self, (low, high), entropy_coeff=entropy_coeff)

    def forward(self, distribution: Distribution, value: object, data: Mapping[str, Any] | TensorDictBase) -> Losses:
        """The losses.

        Args:
            distribution: of the actions ``[B, T]``.
            value: nothing: there is no critic.
            data: what was collected, its ``advantage`` ``[B, T, 1]``, ``loss_mask`` (bool of that shape; without it,
                every step counts), and what the options need: ``ref_log_prob`` ``[B, T]`` and ``episode_loss_steps``
                ``[B, T, 1]``, how many steps of its episode count.

        Raises:
            KeyError: an entry is missing.
            ValueError: the policy gives more than one log-probability a step.
        """
        advantage, old = data[ADVANTAGE], data[LOG_PROB].unsqueeze(-1)
        log_ratio = distribution.log_prob(data[ACTION]).unsqueeze(-1) - old
        check_one_a_step(log_ratio, advantage.shape)
        mask = data[LOSS_MASK] if LOSS_MASK in data else torch.ones_like(advantage, dtype=torch.bool)
        weight = self._weight(log_ratio, mask, data)
        gain, outside = clipped_surrogate(log_ratio, advantage, self.clip_epsilon_low, self.clip_epsilon_high)
        terms, metrics = {"objective": self._aggregated(-gain, weight)}, {}
        if self.entropy_bonus:
            entropy = entropy_of(distribution, self._samples_mc_entropy).unsqueeze(-1)
            terms["entropy"] = self._aggregated(-self.entropy_coeff * entropy, weight)
            metrics["policy/entropy"] = _mean(entropy, mask)
        metrics["policy/kl_approx"] = _mean(-log_ratio, mask)
        metrics["policy/kl"] = _mean(kl_from_log_ratio(log_ratio), mask)
        kls = {}
        if self.kl_to_ref_coeff:
            kls["kl_to_ref"] = kl_from_log_ratio(data[REF_LOG_PROB].view_as(old) - (old + log_ratio))
        if self.kl_to_inference_coeff:
            kls["kl_to_inference"] = kl_from_log_ratio(-log_ratio)
        for name, kl in kls.items():
            terms[name] = self._aggregated(getattr(self, f"{name}_coeff") * kl, weight)
            metrics[f"policy/{name}"] = _mean(kl, mask)
        metrics["policy/clip_fraction"] = _mean(outside.to(log_ratio.dtype), mask)
        metrics["policy/effective_sample_size"] = effective_sample_fraction(log_ratio.detach(), mask)
        return Losses(terms, metrics)

    def _weight(self, log_ratio: Tensor, mask: Tensor, data: Mapping[str, Any] | TensorDictBase) -> Tensor:
        """Of each step in the terms."""
        if self._kl_mask_threshold is not None:
            mask = mask & (0.5 * log_ratio**2 <= self._kl_mask_threshold)
        weight = mask.to(log_ratio.dtype)
        return weight / data[EPISODE_LOSS_STEPS].clamp(min=1) if self.aggregation == "episode" else weight

    def _aggregated(self, value: Tensor, weight: Tensor) -> Tensor:
        """``[B, T, 1]`` values by the weights of their steps: their mean, their sum, or each step's ``[B, T]``."""
        value = torch.where(weight > 0, value, 0.0)
        if self.reduction == "none":
            return value.squeeze(-1)
        total = (value * weight).sum()
        if self.reduction == "sum":
            return total
        # Where no step counts the sum is zero, and the mean should be too.
        return total / torch.where(weight.sum() > 0, weight.sum(), 1.0)


class GRPO:
    """Advantages relative to a group, the loss, and the reference policy if there is one.

    Args:
        config: the run's configuration.
        policy: the policy to improve, without a critic.
    """

    def __init__(self, config: TrainConfig, policy: Policy) -> None:
        algorithm = config.algorithm
        self.config, self._policy = algorithm, policy
        self._iterations = 0
        self.loss = PolicyLoss(policy, GRPOTerms(**options_of(GRPOTerms, algorithm)).to(config.device))
        self._reference = deepcopy(policy) if algorithm.kl_to_ref_coeff else None
        self.keys = [OBSERVATION, *policy.state_keys, IS_INIT, ACTION, LOG_PROB, ADVANTAGE]
        self.keys += [LOSS_MASK, EPISODE_LOSS_STEPS, *([] if self._reference is None else [REF_LOG_PROB])]
        low, high = algorithm.clip_range
        self._schedules = {
            "entropy_coeff": (algorithm.entropy_coeff, algorithm.entropy_final_fraction),
            "clip_epsilon_low": (low, algorithm.clip_final_fraction),
            "clip_epsilon_high": (high, algorithm.clip_final_fraction),
        }

    def begin_iteration(self, progress: float) -> None:
        """Sets clip range and entropy coefficient, and makes the policy the reference where that is due."""
        anneal(self.loss.terms, self._schedules, progress)
        every = self.config.ref_refresh_updates
        if self._reference is not None and every is not None and self._iterations % every == 0:
            self._reference.load_state_dict(self._policy.state_dict())
        self._iterations += 1

    def prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes advantages, which steps count, and the reference policy's log-probabilities."""
        config = self.config
        metrics = add_group_advantages(
            batch_NT,
            reward_NT,
            group_size=given(config.group_size),
            gamma=config.gamma,
            kind=given(config.advantage),
            divide_by_std=given(config.divide_by_std),
            drop_flat_groups=given(config.drop_flat_groups),
        )
        if self._reference is not None:
            # Rows begin with a reset, so the reference goes through its own states, not the policy's.
            with torch.no_grad():
                distribution, _, _ = self._reference.sequence(*self._reference.inputs(batch_NT))
                batch_NT.set(REF_LOG_PROB, distribution.log_prob(batch_NT[ACTION]))
        return {**metrics, **advantage_metrics(batch_NT[ADVANTAGE][batch_NT[LOSS_MASK]])}

    def end_iteration(self, kl: float) -> None:
        """Nothing here follows the KL."""

    def state_dict(self) -> dict[str, Any]:
        """The reference policy, and the iterations that count towards its refresh."""
        reference = {} if self._reference is None else self._reference.state_dict()
        return {"iterations": self._iterations, "reference": reference}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._iterations = state["iterations"]
        if self._reference is not None:
            self._reference.load_state_dict(state["reference"])


def make_algorithm(config: TrainConfig, policy: Policy) -> GRPO:
    """GRPO as configured."""
    return GRPO(config, policy)


def entropy_of(distribution: Distribution, samples: int) -> Tensor:
    """The entropy; estimated from so many samples where it has no closed form."""
    try:
        entropy: Tensor = distribution.entropy()
    except NotImplementedError:
        shape = torch.Size([samples])
        drawn = distribution.rsample(shape) if distribution.has_rsample else distribution.sample(shape)
        entropy = -distribution.log_prob(drawn).mean(0)
    return entropy


def _mean(value: Tensor, mask: Tensor) -> Tensor:
    """The mean over the steps that count, without a gradient; zero where none does."""
    return torch.where(mask, value.detach(), 0.0).sum() / mask.sum().clamp(min=1)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
