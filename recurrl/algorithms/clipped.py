"""The part that PPO and GRPO share."""

from typing import Any, ClassVar

from tensordict import NestedKey
from torch import nn

from recurrl.config import ClippedConfig
from recurrl.keys import OBSERVATION
from recurrl.losses.policy_loss import PolicyLoss, options_of
from recurrl.losses.schedule import annealed
from recurrl.policy import Policy
from recurrl.recurrent.module.keys import IS_INIT


class ClippedAlgorithm:
    """A loss over a policy's own parameters, whose clip range and entropy bonus follow schedules.

    Args:
        options: as configured.
        policy: the policy to improve.

    Attributes:
        terms: the class of the loss on tensors; its constructor takes options by their names.
    """

    terms: ClassVar[type[nn.Module]]

    def __init__(self, options: ClippedConfig, policy: Policy) -> None:
        self.options, self.policy = options, policy
        self.loss = PolicyLoss(policy, self.terms(**options_of(self.terms, options)).to(policy.device))
        self.keys: list[NestedKey] = [OBSERVATION, *policy.state_keys, IS_INIT, *self.loss.terms.reads]

    def begin_iteration(self, progress: float) -> None:
        """Sets the clip range and the entropy coefficient."""
        options, terms = self.options, self.loss.terms
        low, high = options.clip_range
        terms.clip_epsilon_low.fill_(annealed(low, options.clip_final_fraction, progress))
        terms.clip_epsilon_high.fill_(annealed(high, options.clip_final_fraction, progress))
        terms.entropy_coeff.fill_(annealed(options.entropy_coeff, options.entropy_final_fraction, progress))

    def end_iteration(self, kl: float) -> None:
        """Does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """No state besides the policy's."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing."""
