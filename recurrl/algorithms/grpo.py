"""Group-relative policy optimisation for control, Shao et al. 2024, https://arxiv.org/abs/2402.03300.

Shape legend: N environments, T steps.
"""

from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from recurrl.algorithms.clipped import ClippedAlgorithm
from recurrl.config import GRPOConfig
from recurrl.keys import ACTION
from recurrl.losses.advantage import ADVANTAGE, LOSS_MASK, add_group_advantages, advantage_metrics
from recurrl.losses.grpo import REF_LOG_PROB, GRPOTerms
from recurrl.policy import Policy


class GRPO(ClippedAlgorithm):
    """Advantages relative to a group, GRPO's losses, and a reference policy if configured.

    Args:
        options: as configured.
        policy: the policy to improve, without a critic.
        desired_kl: not used.
    """

    options: GRPOConfig
    terms = GRPOTerms

    def __init__(self, options: GRPOConfig, policy: Policy, desired_kl: float) -> None:
        super().__init__(options, policy)
        self._iterations = 0
        self._reference = deepcopy(policy) if options.kl_to_ref_coeff else None

    def begin_iteration(self, progress: float) -> None:
        """Sets what follows a schedule, and copies the policy to the reference when that is due."""
        super().begin_iteration(progress)
        every = self.options.ref_refresh_updates
        if self._reference is not None and every is not None and self._iterations % every == 0:
            self._reference.load_state_dict(self.policy.state_dict())
        self._iterations += 1

    def prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes advantages, the loss mask, and the reference policy's log-probabilities."""
        options = self.options
        metrics = add_group_advantages(
            batch_NT,
            reward_NT,
            group_size=options.group_size,
            gamma=options.gamma,
            kind=options.advantage,
            divide_by_std=options.divide_by_std,
            drop_flat_groups=options.drop_flat_groups,
        )
        if self._reference is not None:
            # Rows begin with a reset, so the reference has states of its own throughout, not the policy's.
            with torch.no_grad():
                distribution, _, _, _ = self._reference.sequence(*self._reference.inputs(batch_NT))
                batch_NT.set(REF_LOG_PROB, distribution.log_prob(batch_NT[ACTION]))
        return {**metrics, **advantage_metrics(batch_NT[ADVANTAGE][batch_NT[LOSS_MASK]])}

    def state_dict(self) -> dict[str, Any]:
        """The reference policy, and the iterations since the run began."""
        reference = {} if self._reference is None else self._reference.state_dict()
        return {"iterations": self._iterations, "reference": reference}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores them."""
        self._iterations = state["iterations"]
        if self._reference is not None:
            self._reference.load_state_dict(state["reference"])


make = GRPO
