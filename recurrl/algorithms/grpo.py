"""Group-relative policy optimisation for control, Shao et al. 2024, https://arxiv.org/abs/2402.03300.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice.
"""

from copy import deepcopy

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from recurrl.algorithms.advantages import advantage_metrics
from recurrl.algorithms.algorithm import Algorithm, Losses
from recurrl.algorithms.group_advantages import add_group_advantages
from recurrl.algorithms.grpo_loss import REF_LOG_PROB, GRPOTerms
from recurrl.config import GRPOConfig, TrainConfig
from recurrl.keys import ACTION, ADVANTAGE, LOSS_MASK
from recurrl.policy import Policy
from recurrl.policy.policy import SequenceOutput


class GRPO(Algorithm):
    """Advantages relative to a group of episodes, GRPO's loss, and a reference policy if ``kl_to_ref_coeff`` is set."""

    options: GRPOConfig

    def __init__(self, options: GRPOConfig, policy: Policy, config: TrainConfig) -> None:
        super().__init__(options, policy, config)
        self.terms = GRPOTerms(
            clip_epsilon=options.clip_range,
            entropy_coeff=options.entropy_coeff,
            aggregation=options.aggregation,
            kl_to_ref_coeff=options.kl_to_ref_coeff,
            dtype=next(policy.parameters()).dtype,
        )
        self.log_clip_range = self.terms.surrogate.log_range
        self.reference = deepcopy(policy).requires_grad_(False) if options.kl_to_ref_coeff else None
        self.iterations = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def begin_iteration(self) -> None:
        """Anneals the entropy bonus, and copies the policy to the reference when that is due."""
        options = self.options
        self.terms.entropy_coeff.fill_(self.annealed(options.entropy_coeff, options.entropy_final_fraction))
        every = options.ref_refresh_updates
        if self.reference is not None and every is not None and int(self.iterations) % every == 0:
            self.reference.load_state_dict(self.policy.state_dict())
        self.iterations.add_(1)

    def prepare(self, rows_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes advantages, the loss mask, and the reference policy's log-probabilities."""
        options = self.options
        metrics = add_group_advantages(
            rows_NT,
            reward_NT,
            group_size=options.group_size,
            gamma=options.gamma,
            kind=options.advantage,
            divide_by_std=options.divide_by_std,
            drop_flat_groups=options.drop_flat_groups,
        )
        if self.reference is not None:
            # Rows begin with a reset, so the reference starts from states of zero, not from the policy's.
            with torch.no_grad():
                output = self.reference.sequence(*self.reference.inputs(rows_NT))
                rows_NT.set(REF_LOG_PROB, output.distribution.log_prob(rows_NT[ACTION]))
        return {**metrics, **advantage_metrics(rows_NT[ADVANTAGE][rows_NT[LOSS_MASK]])}

    def loss(self, slices_SK: TensorDictBase, output: SequenceOutput) -> Losses:
        """GRPO's loss of a minibatch."""
        losses: Losses = self.terms(output.distribution, slices_SK)
        return losses


make = GRPO
