"""The result of a loss, and the loss of a minibatch over a policy's parameters.

Shape legend: S slices, K steps of a slice.
"""

from collections.abc import Mapping
from inspect import signature
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from recurrl.config import ClippedConfig
from recurrl.errors import require
from recurrl.losses.deferred import Deferred, Metrics
from recurrl.policy import Policy


class Losses(NamedTuple):
    """The result of a loss.

    Attributes:
        terms: scalars whose sum is minimised, by name; they are logged as ``loss/<name>``.
        metrics: other scalars to log, without gradient, by the name of their column in ``metrics.csv``. Those of
            :class:`~recurrl.losses.deferred.Metrics` may be deferred.
        weights: of this minibatch's terms and of its metrics, where ranks average theirs; None if all steps count.
    """

    terms: dict[str, Tensor]
    metrics: Mapping[str, Tensor]
    weights: tuple[Tensor, Tensor] | None = None

    @property
    def total(self) -> Tensor:
        """The sum of the terms."""
        first, *others = self.terms.values()
        return sum(others, first)

    def logged(self) -> dict[str, Tensor]:
        """Terms and metrics, by the name of their column."""
        return {**self._columns(), **self.metrics}

    def kept(self) -> dict[str, Tensor | Deferred]:
        """The same, without computing what is deferred."""
        return {**self._columns(), **self.entries}

    @property
    def entries(self) -> Mapping[str, Tensor | Deferred]:
        """The metrics, without computing what is deferred."""
        return self.metrics.entries if isinstance(self.metrics, Metrics) else self.metrics

    def _columns(self) -> dict[str, Tensor]:
        return {f"loss/{name}": term.detach() for name, term in self.terms.items()}


def add_coefficients(terms: nn.Module, clip_epsilon: float | tuple[float, float], **others: float) -> None:
    """Registers the clip range, ε or (ε_low, ε_high), and other values that change during training."""
    low, high = clip_epsilon if isinstance(clip_epsilon, tuple) else (clip_epsilon, clip_epsilon)
    require(0 <= low < 1 and high >= 0, f"clip_epsilon={clip_epsilon}: give numbers of 0 or above, the lower below 1.")
    for name, value in {"clip_epsilon_low": low, "clip_epsilon_high": high, **others}.items():
        # float64: a tensor without dimensions does not promote the losses, which keep the network's dtype.
        terms.register_buffer(name, torch.tensor(value, dtype=torch.float64))


def options_of(terms: type[nn.Module], config: ClippedConfig) -> dict[str, Any]:
    """The options of an algorithm that the constructors of its terms, and of their base classes, take by name."""
    options = {**vars(config), "clip_epsilon": config.clip_range}
    taken = {name for cls in terms.__mro__ for name in signature(cls).parameters}
    return {name: value for name, value in options.items() if name in taken}


class PolicyLoss(nn.Module):
    """The loss of a minibatch of slices. The policy, whose own parameters it uses, runs once.

    Args:
        policy: the policy to improve.
        terms: ``(distribution, value, slices)`` to :class:`Losses`, where ``slices`` is the minibatch; its ``reads``
            are the entries of the minibatch that it needs.
    """

    def __init__(self, policy: Policy, terms: nn.Module) -> None:
        super().__init__()
        self.policy = policy
        self.terms: Any = terms

    def forward(self, slices_SK: TensorDictBase) -> Losses:
        """The losses of a minibatch.

        Raises:
            KeyError: an entry is missing.
            ValueError: the policy returns more than one log-probability per step.
        """
        distribution, value, _, _ = self.policy.sequence(*self.policy.inputs(slices_SK))
        losses: Losses = self.terms(distribution, value, slices_SK)
        return losses
