"""An algorithm from scratch: REINFORCE with a learned baseline, Williams 1992, https://doi.org/10.1007/BF00992696.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor

from recurrl.algorithms import Algorithm, Losses
from recurrl.algorithms.advantages import next_values
from recurrl.algorithms.importance import mean_of
from recurrl.config import AlgorithmConfig, TrainConfig
from recurrl.config.options import WEIGHT, option
from recurrl.keys import ACTION, LOSS_MASK, VALUE
from recurrl.policy.policy import Policy, SequenceOutput

RETURN = "return_to_go"


@dataclass
class ReinforceConfig(AlgorithmConfig):
    """Every algorithm's options, and two more."""

    baseline_coeff: float = option("weight of the baseline's squared error", WEIGHT)
    entropy_coeff: float = option("weight of the entropy bonus", WEIGHT)

    @property
    def critic_kind(self) -> str:
        """The policy has a value head on the actor's features: the baseline."""
        return "shared"


class Reinforce(Algorithm):
    """Actions are made more probable by as much as their return exceeds the baseline."""

    options: ReinforceConfig

    def __init__(self, options: ReinforceConfig, policy: Policy, config: TrainConfig) -> None:
        super().__init__(options, policy, config)

    def prepare(self, rows_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes the discounted return from each step on."""
        done, following = rows_NT["next", "done"], next_values(rows_NT, self.policy)
        to_go, returns = following[:, -1], []
        for t in reversed(range(reward_NT.shape[1])):
            # Where an episode was cut off, and at the end of a row, the baseline stands for the rest of the return.
            to_go = reward_NT[:, t : t + 1] + self.options.gamma * torch.where(done[:, t], following[:, t], to_go)
            returns.append(to_go)
        rows_NT.set(RETURN, torch.stack(returns[::-1], 1))
        return {"value/return_mean": float(mean_of(rows_NT[RETURN], rows_NT.get(LOSS_MASK)))}

    def loss(self, slices_SK: TensorDictBase, output: SequenceOutput) -> Losses:
        """The policy gradient's surrogate, the baseline's error and the entropy bonus."""
        mask_SK1, log_prob = slices_SK.get(LOSS_MASK), output.distribution.log_prob(slices_SK[ACTION]).unsqueeze(-1)
        entropy = mean_of(output.distribution.entropy().unsqueeze(-1), mask_SK1)
        assert output.value is not None
        return Losses(
            {
                "objective": mean_of((slices_SK[VALUE] - slices_SK[RETURN]) * log_prob, mask_SK1),
                "baseline": self.options.baseline_coeff
                * mean_of((output.value - slices_SK[RETURN]).square(), mask_SK1),
                "entropy": -self.options.entropy_coeff * entropy,
            },
            {"policy/entropy": entropy.detach()},
            mask=mask_SK1,
        )
