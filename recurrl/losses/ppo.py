"""Proximal policy optimisation: clipped, with a KL penalty, or plain.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.

Shape legend: N environments, T steps, B rows or slices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional

from recurrl.advantage import ADVANTAGE, VALUE_TARGET, add_advantages, advantage_metrics, standardized
from recurrl.config import TrainConfig, given
from recurrl.importance import check_one_a_step, clipped_surrogate, effective_sample_fraction, kl_from_log_ratio
from recurrl.losses._loss import Losses, PolicyLoss, add_coefficients, options_of
from recurrl.normalization import RunningScale
from recurrl.policy import ACTION, LOG_PROB, OBSERVATION, VALUE, Policy
from recurrl.recurrent.module.keys import IS_INIT
from recurrl.schedule import anneal, annealed

# The weight of the KL penalty changes by this factor when the KL is this many times off its target (section 4).
KL_COEFF_FACTOR = 2.0
KL_TOLERANCE = 1.5
DISTANCES = {"l2": functional.mse_loss, "smooth_l1": functional.smooth_l1_loss}


class PPOTerms(nn.Module):
    """PPO's losses from what a policy makes of a minibatch.

    For a step with advantage A, ratio ρ = π(a) / π_collecting(a), value V and value target R::

        objective  = −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)    objective="clip"
                     −ρ A                                           objective="plain" and "kl"
        kl         = kl_coeff · (ρ − 1 − log ρ)                     objective="kl"
        entropy    = −entropy_coeff · H(π)
        critic     = critic_coeff · d(V, R)

    each averaged over the steps, with d by ``critic_loss``. With ``clip_value`` c, d is the larger of d(V, R) and that
    of a value that moved from the stored one by c at most.

    Args:
        objective: ``clip``, ``kl`` or ``plain``.
        clip_epsilon: ε, or the pair (ε_low, ε_high).
        entropy_coeff: weight of the entropy.
        kl_coeff: weight of the KL penalty.
        critic_coeff: weight of the critic's loss.
        critic_loss: ``l2`` or ``smooth_l1``.
        clip_value: c; None to leave values unclipped.
        normalize_advantage: ``minibatch`` to standardise the advantages of each minibatch.
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
        self._asks_entropy = entropy_coeff != 0
        self._distance = DISTANCES[critic_loss]
        add_coefficients(self, clip_epsilon, entropy_coeff=entropy_coeff, kl_coeff=kl_coeff)

    def forward(self, distribution: Distribution, value: Tensor, data: Mapping[str, Any] | TensorDictBase) -> Losses:
        """The losses.

        Args:
            distribution: of the actions ``[B, T]``.
            value: ``[B, T, 1]``.
            data: what was collected, and its ``advantage`` and ``value_target``, ``[B, T, 1]``.

        Raises:
            KeyError: an entry is missing.
            ValueError: the policy gives more than one log-probability a step.
        """
        advantage = data[ADVANTAGE]
        if self._normalize:
            advantage = standardized(advantage)
        log_ratio = (distribution.log_prob(data[ACTION]) - data[LOG_PROB]).unsqueeze(-1)
        check_one_a_step(log_ratio, advantage.shape)
        objective, clipped = self._objective(log_ratio, advantage)
        kl = {"kl": self.kl_coeff * kl_from_log_ratio(log_ratio).mean()} if self.objective == "kl" else {}
        # Without a weight the entropy is for the log, and needs no backward pass.
        with torch.set_grad_enabled(self._asks_entropy and torch.is_grad_enabled()):
            entropy: Tensor = distribution.entropy().mean()
        critic, of_critic = self._critic(value, data)
        return Losses(
            {"objective": objective, "critic": critic, "entropy": -self.entropy_coeff * entropy, **kl},
            {"policy/entropy": entropy.detach(), **_diagnostics(log_ratio.detach(), clipped), **of_critic},
        )

    def _objective(self, log_ratio: Tensor, advantage: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if self.objective != "clip":
            return -(log_ratio.exp() * advantage).mean(), {}
        gain, outside = clipped_surrogate(log_ratio, advantage, self.clip_epsilon_low, self.clip_epsilon_high)
        return -gain.mean(), {"policy/clip_fraction": outside.to(gain.dtype).mean()}

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


@torch.no_grad()
def _diagnostics(log_ratio: Tensor, clipped: dict[str, Tensor]) -> dict[str, Tensor]:
    """``kl_approx`` is the mean of −log ρ; ``kl``, of ρ − 1 − log ρ, has less variance and is never negative (Schulman
    2020, http://joschu.net/blog/kl-approx.html).
    """
    everywhere = torch.ones_like(log_ratio, dtype=torch.bool)
    return {
        "policy/kl_approx": -log_ratio.mean(),
        "policy/kl": kl_from_log_ratio(log_ratio).mean(),
        **clipped,
        "policy/effective_sample_size": effective_sample_fraction(log_ratio, everywhere),
    }


class PPO:
    """Generalised advantage estimates and PPO's losses.

    ``entropy_coeff`` is in units of the advantages' running root mean square. A constant weight that keeps exploring
    where advantages are large would drown them where they are small; and where nothing is left to gain, the bonus
    vanishes with them.

    Args:
        config: the run's configuration.
        policy: the policy to improve, with a critic.
    """

    def __init__(self, config: TrainConfig, policy: Policy) -> None:
        algorithm = config.algorithm
        self.config, self._policy, self._desired_kl = algorithm, policy, config.desired_kl
        self.keys = [OBSERVATION, *policy.state_keys, IS_INIT, ACTION, LOG_PROB, VALUE, ADVANTAGE, VALUE_TARGET]
        self.loss = PolicyLoss(policy, PPOTerms(**options_of(PPOTerms, algorithm)).to(config.device))
        self._schedules: dict[str, tuple[float, float]] = {}
        self._entropy_coeff = algorithm.entropy_coeff
        self._advantage_scale = RunningScale().to(config.device)
        if algorithm.objective == "clip":
            for name, start in zip(("clip_epsilon_low", "clip_epsilon_high"), algorithm.clip_range, strict=True):
                self._schedules[name] = (start, algorithm.clip_final_fraction)

    def begin_iteration(self, progress: float) -> None:
        """Sets clip range and entropy coefficient."""
        anneal(self.loss.terms, self._schedules, progress)
        self._entropy_coeff = annealed(self.config.entropy_coeff, self.config.entropy_final_fraction, progress)

    def prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes advantages and value targets, and sets the weight of the entropy by the size of the advantages."""
        add_advantages(batch_NT, self._policy, reward_NT, self.config.gamma, given(self.config.lmbda))
        advantage, value, target = batch_NT[ADVANTAGE], batch_NT[VALUE], batch_NT[VALUE_TARGET]
        metrics = {
            **advantage_metrics(advantage),
            "value/mean": float(value.mean()),
            "value/std": float(value.std(correction=0)),
            "value/target_mean": float(target.mean()),
            "value/target_std": float(target.std(correction=0)),
            "value/explained_variance": float(1 - (target - value).var() / target.var()),
        }
        if self.config.normalize_advantage == "batch":
            batch_NT.set(ADVANTAGE, standardized(advantage))
        if self.config.normalize_advantage != "minibatch":
            self._advantage_scale.update(batch_NT[ADVANTAGE])
        self.loss.terms.entropy_coeff.copy_(self._entropy_coeff * self._advantage_scale.value)
        return metrics

    def end_iteration(self, kl: float) -> None:
        """Raises or lowers the weight of a KL penalty."""
        if self.config.objective != "kl":
            return
        if kl > self._desired_kl * KL_TOLERANCE:
            self.loss.terms.kl_coeff *= KL_COEFF_FACTOR
        elif kl < self._desired_kl / KL_TOLERANCE:
            self.loss.terms.kl_coeff /= KL_COEFF_FACTOR

    def state_dict(self) -> dict[str, Any]:
        """The advantages' running scale, and the weight of a KL penalty."""
        kl = {"kl_coeff": self.loss.terms.kl_coeff} if self.config.objective == "kl" else {}
        return {"advantage_scale": self._advantage_scale.state_dict(), **kl}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._advantage_scale.load_state_dict(state["advantage_scale"])
        if self.config.objective == "kl":
            self.loss.terms.kl_coeff.copy_(state["kl_coeff"])


def make_algorithm(config: TrainConfig, policy: Policy) -> PPO:
    """The configured variant of PPO."""
    return PPO(config, policy)
