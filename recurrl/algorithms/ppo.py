"""Proximal policy optimisation, Schulman et al. 2017, https://arxiv.org/abs/1707.06347.

Shape legend: N environments, T steps.
"""

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from recurrl.algorithms.clipped import ClippedAlgorithm
from recurrl.config import PPOConfig
from recurrl.keys import VALUE
from recurrl.losses.advantage import (
    ADVANTAGE,
    VALUE_TARGET,
    add_advantages,
    advantage_metrics,
    log_ratios,
    standardized,
)
from recurrl.losses.ppo import PPOTerms
from recurrl.policy import Policy
from recurrl.policy.normalization import RunningScale
from recurrl.runtime.statistics import summary, variance

# The weight of the KL penalty changes by this factor when the KL is this many times off its target (section 4).
KL_COEFF_FACTOR = 2.0
KL_TOLERANCE = 1.5


class PPO(ClippedAlgorithm):
    """Generalised advantage estimation or V-trace, and PPO's losses.

    ``entropy_coeff`` is in units of the advantages' running root mean square. A constant weight that keeps exploring
    where advantages are large would drown them where they are small, and the bonus vanishes with them once nothing is
    left to gain.

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
        self._advantage_scale = RunningScale().to(policy.device)
        self._entropy_coeff = self.loss.terms.entropy_coeff.clone()

    def begin_iteration(self, progress: float) -> None:
        """Sets the clip range and the entropy coefficient."""
        super().begin_iteration(progress)
        self._entropy_coeff.copy_(self.loss.terms.entropy_coeff)

    def prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes advantages and value targets, and scales the entropy bonus by the size of the advantages."""
        log_ratio = log_ratios(batch_NT, self.policy) if self.options.advantage == "vtrace" else None
        add_advantages(batch_NT, self.policy, reward_NT, self.options.gamma, self.options.lmbda, log_ratio)
        advantage, value, target = batch_NT[ADVANTAGE], batch_NT[VALUE], batch_NT[VALUE_TARGET]
        values, targets = summary(value), summary(target)
        metrics = {
            **advantage_metrics(advantage),
            "value/mean": values.mean,
            "value/std": values.std,
            "value/target_mean": targets.mean,
            "value/target_std": targets.std,
            "value/explained_variance": _explained_variance(value, target),
        }
        if self.options.normalize_advantage == "batch":
            batch_NT.set(ADVANTAGE, standardized(advantage))
        if self.options.normalize_advantage != "minibatch":
            self._advantage_scale.update(batch_NT[ADVANTAGE])
        self.loss.terms.entropy_coeff.copy_(self._entropy_coeff * self._advantage_scale.value)
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
        """The advantages' running scale, and the weight of a KL penalty."""
        kl = {"kl_coeff": self.loss.terms.kl_coeff} if self.options.objective == "kl" else {}
        return {"advantage_scale": self._advantage_scale.state_dict(), **kl}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores them."""
        self._advantage_scale.load_state_dict(state["advantage_scale"])
        if self.options.objective == "kl":
            self.loss.terms.kl_coeff.copy_(state["kl_coeff"])


def _explained_variance(value: Tensor, target: Tensor) -> float:
    return float(1 - variance(target - value) / variance(target))


make = PPO
