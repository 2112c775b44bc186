"""What a loss returns, and the loss of a minibatch over a policy's parameters.

Shape legend: S slices, K steps of a slice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tensordict import TensorDictBase
from torch import Tensor, nn

from recurrl.policy import Policy


class Losses(NamedTuple):
    """What a loss returns.

    Attributes:
        terms: scalars whose sum is minimised, by name; they are logged as ``loss/<name>``.
        metrics: other scalars to log, without gradient, by the name of their column in ``metrics.csv``.
    """

    terms: dict[str, Tensor]
    metrics: dict[str, Tensor]

    @property
    def total(self) -> Tensor:
        """The sum of the terms."""
        first, *others = self.terms.values()
        return sum(others, first)

    def logged(self) -> dict[str, Tensor]:
        """Terms and metrics, by the name of their column."""
        return {**{f"loss/{name}": term.detach() for name, term in self.terms.items()}, **self.metrics}


class PolicyLoss(nn.Module):
    """The loss of a minibatch of slices, over the policy's own parameters, which run once.

    Args:
        policy: the policy to improve.
        terms: ``(distribution, value, slices)`` to :class:`Losses`, where ``slices`` is the minibatch.
    """

    def __init__(self, policy: Policy, terms: nn.Module) -> None:
        super().__init__()
        self.policy = policy
        self.terms: Any = terms

    def forward(self, slices_SK: TensorDictBase) -> Losses:
        """The losses of a minibatch.

        Raises:
            KeyError: an entry is missing.
            ValueError: the policy gives more than one log-probability a step.
        """
        distribution, value, _ = self.policy.sequence(*self.policy.inputs(slices_SK))
        losses: Losses = self.terms(distribution, value, slices_SK)
        return losses
