"""The interface between an algorithm and the learner."""

from collections import Counter
from typing import Any, Protocol

from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from recurrl.config import AlgorithmConfig
from recurrl.errors import require
from recurrl.losses import Losses

KL, KL_APPROX = "policy/kl", "policy/kl_approx"
"""Metrics that every loss returns: the learning rate, ``target_kl`` and algorithms may follow them."""


class Algorithm(Protocol):
    """The interface between an algorithm and the learner.

    Its factory is called with its options, the policy, and the run's ``desired_kl``.

    Attributes:
        options: as configured.
        loss: a module over the policy's own parameters; called with a minibatch, it returns :class:`Losses`, with the
            metrics ``policy/kl`` and ``policy/kl_approx`` among them.
        keys: the entries of a batch that the loss reads.
    """

    options: AlgorithmConfig
    loss: Any
    keys: list[NestedKey]

    def begin_iteration(self, progress: float) -> None:
        """Called before an iteration with the fraction of the run's frames so far; sets what follows a schedule.

        The policy still has the weights that collected the batch.
        """

    def prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes what the loss needs into rows ``[N, T]`` and returns metrics.

        If it writes ``loss_mask`` and no step of the batch counts, the iteration makes no gradient step.
        """

    def end_iteration(self, kl: float) -> None:
        """Called after an iteration's gradient steps with the mean KL of their last epoch."""

    def state_dict(self) -> dict[str, Any]:
        """The learnt state besides the policy's, for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores it."""


def check_losses(losses: Losses, name: str) -> None:
    """Rejects the result of a loss that could not be minimised and logged as a whole.

    Args:
        losses: of a minibatch.
        name: of the algorithm.

    Raises:
        ConfigError: there is no term; a term or metric is not a scalar; two would share a column of ``metrics.csv``; or
            a metric that the learner needs is missing.
    """
    asked = f"The loss of algorithm={name}"
    require(bool(losses.terms), f"{asked} has no terms. Return at least one in Losses(terms, metrics).")
    values = [*((f"loss/{term}", value) for term, value in losses.terms.items()), *losses.metrics.items()]
    for column, value in values:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        require(
            shape == (), f"{asked} returns {column} of shape {shape}. Return a scalar tensor, for example its mean()."
        )
    twice = [column for column, count in Counter(column for column, _ in values).items() if count > 1]
    require(not twice, f"{asked} returns {', '.join(twice)} both as a term and as a metric. Rename the metric.")
    missing = [metric for metric in (KL, KL_APPROX) if metric not in losses.metrics]
    require(
        not missing,
        f"{asked} lacks the metric {' and '.join(missing)}, which the learner follows. Add it to the metrics of its "
        "Losses.",
    )
