"""An algorithm with parameters: PPO that also predicts, from the features, what ``env.mask`` hides from the policy.

The prediction shapes the features while training. The trained policy neither has the predictor nor sees what is hidden.

Shape legend: S slices, K steps of a slice.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensordict import TensorDictBase
from torch import nn

from recurrl.algorithms import Losses
from recurrl.algorithms.importance import mean_of
from recurrl.algorithms.ppo import PPO
from recurrl.config import PPOConfig, TrainConfig
from recurrl.config.options import WEIGHT, option
from recurrl.errors import require
from recurrl.keys import LOSS_MASK, OBSERVATION, PRIVILEGED
from recurrl.policy.policy import Policy, SequenceOutput


@dataclass
class PredictingPPOConfig(PPOConfig):
    """PPO's options, and one more."""

    prediction_coeff: float = option("weight of the prediction's squared error", WEIGHT)

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The hidden entries are in the rollout, and the actor does not see them."""
        return (PRIVILEGED, *self.critic_observation)


class PredictingPPO(PPO):
    """PPO with a linear predictor of the hidden entries of the observation."""

    options: PredictingPPOConfig

    def __init__(self, options: PredictingPPOConfig, policy: Policy, config: TrainConfig) -> None:
        super().__init__(options, policy, config)
        require(bool(config.env.mask), "env.mask must hide entries of the observation, which are to be predicted.")
        # Optimised with the policy's parameters, and saved in checkpoints.
        self.predictor = nn.Linear(config.cell.hidden_size, len(config.env.mask))

    def loss(self, slices_SK: TensorDictBase, output: SequenceOutput) -> Losses:
        """PPO's terms, and the error of the prediction, logged as ``loss/prediction`` and ``prediction/error``."""
        losses = super().loss(slices_SK, output)
        errors = (self.predictor(output.features) - slices_SK[OBSERVATION, PRIVILEGED]).square()
        error = mean_of(errors.mean(-1, keepdim=True), slices_SK.get(LOSS_MASK))
        return losses._replace(
            terms={**losses.terms, "prediction": self.options.prediction_coeff * error},
            metrics={**losses.metrics, "prediction/error": error.detach()},
        )
