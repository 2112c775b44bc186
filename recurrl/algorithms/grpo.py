"""Group-relative policy optimisation for control, Shao et al. 2024, https://arxiv.org/abs/2402.03300.

Shape legend: N environments, T steps.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from recurrl.config import GRPOConfig
from recurrl.losses.advantage import ADVANTAGE, EPISODE_LOSS_STEPS, LOSS_MASK, add_group_advantages, advantage_metrics
from recurrl.losses.grpo import REF_LOG_PROB, GRPOTerms
from recurrl.losses.policy_loss import PolicyLoss, options_of
from recurrl.losses.schedule import anneal
from recurrl.policy import ACTION, LOG_PROB, OBSERVATION, Policy
from recurrl.recurrent.module.keys import IS_INIT


class GRPO:
    """Advantages relative to a group, the loss, and the reference policy if there is one.

    Args:
        options: as configured.
        policy: the policy to improve, without a critic.
    """

    def __init__(self, options: GRPOConfig, policy: Policy) -> None:
        self.options, self._policy = options, policy
        self._iterations = 0
        self.loss = PolicyLoss(policy, GRPOTerms(**options_of(GRPOTerms, options)).to(policy.device))
        self._reference = deepcopy(policy) if options.kl_to_ref_coeff else None
        self.keys = [OBSERVATION, *policy.state_keys, IS_INIT, ACTION, LOG_PROB, ADVANTAGE]
        self.keys += [LOSS_MASK, EPISODE_LOSS_STEPS, *([] if self._reference is None else [REF_LOG_PROB])]
        low, high = options.clip_range
        self._schedules = {
            "entropy_coeff": (options.entropy_coeff, options.entropy_final_fraction),
            "clip_epsilon_low": (low, options.clip_final_fraction),
            "clip_epsilon_high": (high, options.clip_final_fraction),
        }

    def begin_iteration(self, progress: float) -> None:
        """Sets clip range and entropy coefficient, and makes the policy the reference where that is due."""
        anneal(self.loss.terms, self._schedules, progress)
        every = self.options.ref_refresh_updates
        if self._reference is not None and every is not None and self._iterations % every == 0:
            self._reference.load_state_dict(self._policy.state_dict())
        self._iterations += 1

    def prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes advantages, which steps count, and the reference policy's log-probabilities."""
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
            # Rows begin with a reset, so the reference goes through its own states, not the policy's.
            with torch.no_grad():
                distribution, _, _ = self._reference.sequence(*self._reference.inputs(batch_NT))
                batch_NT.set(REF_LOG_PROB, distribution.log_prob(batch_NT[ACTION]))
        return {**metrics, **advantage_metrics(batch_NT[ADVANTAGE][batch_NT[LOSS_MASK]])}

    def end_iteration(self, kl: float) -> None:
        """Nothing here follows the KL."""

    def state_dict(self) -> dict[str, Any]:
        """The reference policy, and the iterations that count towards its refresh."""
        reference = {} if self._reference is None else self._reference.state_dict()
        return {"iterations": self._iterations, "reference": reference}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._iterations = state["iterations"]
        if self._reference is not None:
            self._reference.load_state_dict(state["reference"])


def make(options: GRPOConfig, policy: Policy, desired_kl: float) -> GRPO:
    """GRPO as configured."""
    return GRPO(options, policy)
