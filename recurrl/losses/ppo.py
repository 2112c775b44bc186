"""Proximal policy optimisation: clipped, with a KL penalty, or plain.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.

Shape legend: B rows or slices, T steps.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional

from recurrl.keys import ACTION, LOG_PROB, VALUE
from recurrl.losses.advantage import ADVANTAGE, VALUE_TARGET, standardized
from recurrl.losses.deferred import Metrics
from recurrl.losses.importance import check_one_a_step, clipped_surrogate, kl_from_log_ratio, ratio_metrics
from recurrl.losses.policy_loss import Losses, add_coefficients

DISTANCES = {"l2": functional.mse_loss, "smooth_l1": functional.smooth_l1_loss}


class PPOTerms(nn.Module):
    """PPO's losses on tensors.

    For a step with advantage A, ratio ρ = π(a) / π_collecting(a), value V and value target R::

        objective  = −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)    objective="clip"
                     −ρ A                                           objective="plain" and "kl"
        kl         = kl_coeff · (ρ − 1 − log ρ)                     objective="kl"
        entropy    = −entropy_coeff · H(π)
        critic     = critic_coeff · d(V, R)

    each averaged over the steps; ``critic_loss`` chooses d. With ``clip_value`` c, d is the larger of d(V, R) and the
    distance of V clipped to within c of the stored value.

    Args:
        objective: ``clip``, ``kl`` or ``plain``.
        clip_epsilon: ε, or the pair (ε_low, ε_high).
        entropy_coeff: weight of the entropy.
        kl_coeff: weight of the KL penalty.
        critic_coeff: weight of the critic's loss.
        critic_loss: ``l2`` or ``smooth_l1``.
        clip_value: c; None to leave values unclipped.
        normalize_advantage: ``minibatch`` to standardise the advantages of each minibatch.

    Attributes:
        reads: the entries of a minibatch that :meth:`forward` reads.
    """

    clip_epsilon_low: Tensor
    clip_epsilon_high: Tensor
    entropy_coeff: Tensor
    kl_coeff: Tensor

    def __init__(
        self,
        *,
        objective: str = "clip",
        clip_epsilon: float | tuple[float, float] = 0.2,
        entropy_coeff: float = 0.0,
        kl_coeff: float = 1.0,
        critic_coeff: float = 0.5,
        critic_loss: str = "l2",
        clip_value: float | None = None,
        normalize_advantage: str = "none",
    ) -> None:
        super().__init__()
        self.objective = objective
        self.critic_coeff = critic_coeff
        self.clip_value = clip_value
        self._normalize = normalize_advantage == "minibatch"
        self._has_entropy_bonus = entropy_coeff != 0
        self._distance = DISTANCES[critic_loss]
        self.reads = [ACTION, LOG_PROB, ADVANTAGE, VALUE_TARGET, *([] if clip_value is None else [VALUE])]
        add_coefficients(self, clip_epsilon, entropy_coeff=entropy_coeff, kl_coeff=kl_coeff)

    def forward(self, distribution: Distribution, value: Tensor, data: Mapping[str, Any] | TensorDictBase) -> Losses:
        """The losses.

        Args:
            distribution: of the actions ``[B, T]``.
            value: ``[B, T, 1]``.
            data: the rollout's entries, with ``advantage`` and ``value_target`` ``[B, T, 1]``.

        Raises:
            KeyError: an entry is missing.
            ValueError: the policy returns more than one log-probability per step.
        """
        advantage = data[ADVANTAGE]
        if self._normalize:
            advantage = standardized(advantage)
        log_ratio = (distribution.log_prob(data[ACTION]) - data[LOG_PROB]).unsqueeze(-1)
        check_one_a_step(log_ratio, advantage.shape)
        objective, outside = self._objective(log_ratio, advantage)
        kl = {"kl": self.kl_coeff * kl_from_log_ratio(log_ratio).mean()} if self.objective == "kl" else {}
        # With weight zero the entropy is only logged, and needs no backward pass.
        with torch.set_grad_enabled(self._has_entropy_bonus and torch.is_grad_enabled()):
            entropy: Tensor = distribution.entropy().mean()
        critic, of_critic = self._critic(value, data)
        return Losses(
            {"objective": objective, "critic": critic, "entropy": -self.entropy_coeff * entropy, **kl},
            Metrics({"policy/entropy": entropy.detach(), **ratio_metrics(log_ratio.detach(), outside), **of_critic}),
        )

    def _objective(self, log_ratio: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.objective != "clip":
            return -(log_ratio.exp() * advantage).mean(), None
        gain, outside = clipped_surrogate(log_ratio, advantage, self.clip_epsilon_low, self.clip_epsilon_high)
        return -gain.mean(), outside

    def _critic(self, value: Tensor, data: Mapping[str, Any] | TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        target, limit = data[VALUE_TARGET], self.clip_value
        if limit is None:
            return self.critic_coeff * self._distance(value, target), {}
        stored = data[VALUE]
        moved = value - stored
        clipped = moved.clamp(-limit, limit)
        distance = torch.maximum(
            self._distance(value, target, reduction="none"), self._distance(stored + clipped, target, reduction="none")
        )
        fraction = (clipped != moved).to(value.dtype).mean()
        return self.critic_coeff * distance.mean(), {"value/clip_fraction": fraction}
