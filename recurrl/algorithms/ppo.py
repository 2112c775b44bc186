"""Proximal policy optimisation, Schulman et al. 2017, https://arxiv.org/abs/1707.06347.

Shape legend: N environments, T steps.
"""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from recurrl.algorithms.clipped import ClippedAlgorithm
from recurrl.config import PPOConfig
from recurrl.keys import VALUE
from recurrl.losses.advantage import ADVANTAGE, VALUE_TARGET, add_advantages, advantage_metrics, standardized
from recurrl.losses.ppo import PPOTerms
from recurrl.policy import Policy

# The weight of the KL penalty changes by this factor when the KL is this many times off its target (section 4).
KL_COEFF_FACTOR = 2.0
KL_TOLERANCE = 1.5


class PPO(ClippedAlgorithm):
    """Generalised advantage estimation and PPO's losses.

    Args:
        options: as configured.
        policy: the policy to improve, with a critic.
        desired_kl: the KL per iteration that the weight of a KL penalty aims at.
    """

    options: PPOConfig
    terms = PPOTerms

    def __init__(self, options: PPOConfig, policy: Policy, desired_kl: float) -> None:
        super().__init__(options, policy)
        self._desired_kl = desired_kl

    def prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes advantages and value targets."""
        add_advantages(batch_NT, self.policy, reward_NT, self.options.gamma, self.options.lmbda)
        advantage, value, target = batch_NT[ADVANTAGE], batch_NT[VALUE], batch_NT[VALUE_TARGET]
        metrics = {
            **advantage_metrics(advantage),
            "value/mean": float(value.mean()),
            "value/std": float(value.std(correction=0)),
            "value/target_mean": float(target.mean()),
            "value/target_std": float(target.std(correction=0)),
            "value/explained_variance": float(1 - (target - value).var() / target.var()),
        }
        if self.options.normalize_advantage == "batch":
            batch_NT.set(ADVANTAGE, standardized(advantage))
        return metrics

    def end_iteration(self, kl: float) -> None:
        """Adapts the weight of a KL penalty."""
        if self.options.objective != "kl":
            return
        if kl > self._desired_kl * KL_TOLERANCE:
            self.loss.terms.kl_coeff *= KL_COEFF_FACTOR
        elif kl < self._desired_kl / KL_TOLERANCE:
            self.loss.terms.kl_coeff /= KL_COEFF_FACTOR

    def state_dict(self) -> dict[str, Any]:
        """The weight of a KL penalty."""
        return {"kl_coeff": self.loss.terms.kl_coeff} if self.options.objective == "kl" else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores it."""
        if self.options.objective == "kl":
            self.loss.terms.kl_coeff.copy_(state["kl_coeff"])


make = PPO
