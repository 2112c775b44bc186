"""An algorithm: PPO with a quadratic penalty on the log-ratio, which bounds each update softly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor
from torch.distributions import Distribution

from recurrl.algorithms.ppo import PPO
from recurrl.config import PPOConfig
from recurrl.config.options import WEIGHT, option
from recurrl.keys import ACTION, LOG_PROB
from recurrl.losses import Losses
from recurrl.losses.ppo import PPOTerms
from recurrl.policy import Policy


@dataclass
class TrustPPOConfig(PPOConfig):
    """PPO's options, and one more."""

    trust_coeff: float = option("weight of the squared log-ratio of new and old probabilities", WEIGHT)


class TrustPPOTerms(PPOTerms):
    """PPO's terms, and ``trust = trust_coeff · (log ρ)² / 2``. It is minimised and logged as ``loss/trust``."""

    def __init__(self, *, trust_coeff: float, **options: Any) -> None:
        super().__init__(**options)
        self.trust_coeff = trust_coeff

    def forward(self, distribution: Distribution, value: Tensor, data: Mapping[str, Any] | TensorDictBase) -> Losses:
        """The losses of a minibatch."""
        losses = super().forward(distribution, value, data)
        log_ratio = distribution.log_prob(data[ACTION]) - data[LOG_PROB]
        trust = self.trust_coeff * (log_ratio**2).mean() / 2
        return Losses({**losses.terms, "trust": trust}, losses.metrics)


class TrustPPO(PPO):
    """PPO with these terms."""

    terms = TrustPPOTerms

    def __init__(self, options: TrustPPOConfig, policy: Policy, desired_kl: float) -> None:
        super().__init__(options, policy, desired_kl)
