"""Distillation: a student learns, on its own rollouts, to act like a teacher that sees more.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice.
"""

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from recurrl.algorithms.importance import mean_of
from recurrl.algorithms.metrics import Losses
from recurrl.algorithms.ppo import PPO
from recurrl.algorithms.teachers import TEACHER_ACTION, Teacher
from recurrl.config import DistillConfig, TrainConfig
from recurrl.keys import PRIVILEGED
from recurrl.policy.distributions import Joint, most_probable
from recurrl.policy.policy import Policy, SequenceOutput


class Distill(PPO):
    """Imitation of a teacher, alone or combined with PPO.

    The student acts, and the teacher, which sees the whole observation, labels each step with the action that it would
    take: DAgger, Ross et al. 2011, https://arxiv.org/abs/1011.0686. For a weight w and the teacher's action a* the loss
    is the mean of::

        imitation  = w · −log π(a*), or w · ½ ‖μ − a*‖² for continuous actions, where μ is the deterministic one
        objective  = (1 − w) · PPO's
        entropy    = (1 − w) · PPO's
        critic     = PPO's

    The standard deviation of continuous actions is left to PPO. The teacher is frozen; checkpoints hold only its
    recurrent states.
    """

    options: DistillConfig

    def __init__(self, options: DistillConfig, policy: Policy, config: TrainConfig) -> None:
        super().__init__(options, policy, config)
        self.teacher = Teacher(options.teacher, config.env, PRIVILEGED in options.critic_only, policy.device)
        # A tensor, because a compiled loss treats Python numbers as constants.
        self.weight = nn.Buffer(torch.tensor(options.weight), persistent=False)

    def update(self, rollout_NT: TensorDictBase, progress: float) -> dict[str, float]:
        """Has the teacher label a rollout, and improves the policy from it."""
        self.teacher.label(rollout_NT)
        return super().update(rollout_NT, progress)

    def prepare(self, rows_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Anneals the weight of imitation, and prepares PPO's loss."""
        self.weight.fill_(self.annealed(self.options.weight, self.options.weight_final_fraction))
        return {**super().prepare(rows_NT, reward_NT), "distill/weight": float(self.weight)}

    def loss(self, slices_SK: TensorDictBase, output: SequenceOutput) -> Losses:
        """The imitation loss and PPO's, weighted."""
        losses = super().loss(slices_SK, output)
        rest = {"objective": 1 - self.weight, "entropy": 1 - self.weight}
        terms = {name: rest.get(name, 1) * term for name, term in losses.terms.items()}
        error_SK1 = imitation_error(output.distribution, slices_SK[TEACHER_ACTION]).unsqueeze(-1)
        return losses._replace(terms={"imitation": self.weight * mean_of(error_SK1, losses.mask), **terms})

    def components(self) -> dict[str, Any]:
        """The components of every algorithm, and the teacher's recurrent states."""
        return {**super().components(), "teacher": self.teacher}


def imitation_error(distribution: Any, action: Any) -> Tensor:
    """``[S, K]``: −log π of the teacher's action; for continuous actions, half its squared distance from the policy's
    deterministic action.
    """
    if isinstance(distribution, Joint):
        return torch.stack([imitation_error(part, action[key]) for key, part in distribution.parts.items()]).sum(0)
    chosen = most_probable(distribution)
    if not chosen.is_floating_point():
        return -distribution.log_prob(action)
    return (chosen - action).square().flatten(2).sum(-1) / 2


make = Distill
