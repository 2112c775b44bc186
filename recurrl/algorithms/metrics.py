"""Losses and metrics of gradient steps.

Shape legend: S slices, K steps of a slice, M gradient steps.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from recurrl.algorithms.importance import ratio_metrics
from recurrl.errors import ConfigError
from recurrl.runtime.metrics import merged
from recurrl.runtime.ranks import world

KL, STEPS, SKIPPED, GRAD_NORM = "policy/kl", "optim/steps", "optim/skipped_steps", "optim/grad_norm"
# Names of a gradient step's ratios and their mask, from which mean_metrics computes the metrics of all steps at once.
_LOG_RATIO, _MASK = "log_ratio", "mask"


class Losses(NamedTuple):
    """The loss of a minibatch.

    Attributes:
        terms: scalars whose sum is minimised, logged as ``loss/<name>``.
        metrics: other scalars to log, without gradient, by the name of their column in ``metrics.csv``.
        log_ratio: log π(a) − log π_old(a), ``[S, K]`` or ``[S, K, 1]``, without gradient. ``lr_schedule=adaptive`` and
            ``algorithm.target_kl`` need it for the KL; None if neither is used.
        mask: bool, of either shape, the steps that the terms and metrics are means over; None for all.
        weight: the scalar that the terms were divided by, if it is not the number of unmasked steps. Ranks weight
            their terms by it. If it is zero, the optimizer takes no step.
    """

    terms: dict[str, Tensor]
    metrics: Mapping[str, Tensor] = MappingProxyType({})
    log_ratio: Tensor | None = None
    mask: Tensor | None = None
    weight: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """The sum of the terms."""
        first, *others = self.terms.values()
        return sum(others, first)


def step_metrics(losses: Losses, norm: Tensor, skipped: Tensor, was_applied: Tensor) -> dict[str, Tensor]:
    """The metrics of a gradient step, by the names of their columns in ``metrics.csv``, and its ratios.

    Args:
        losses: the losses of the step's minibatch.
        norm: the norm of the gradient, before clipping.
        skipped: 1 if the step was skipped because its loss or gradient is not finite, else 0.
        was_applied: 1 if the optimizer took the step, else 0.
    """
    terms = {f"loss/{name}": term.detach() for name, term in losses.terms.items()}
    metrics = losses.metrics
    if losses.mask is not None:
        metrics, _ = weighted(metrics, losses.mask.sum().double())
    ratios = {}
    if losses.log_ratio is not None:
        mask = torch.ones_like(losses.log_ratio, dtype=torch.bool) if losses.mask is None else losses.mask
        ratios = {_LOG_RATIO: losses.log_ratio.flatten(), _MASK: mask.flatten()}
    return merged(terms, metrics, ratios, {GRAD_NORM: norm, SKIPPED: skipped, STEPS: was_applied})


@torch.no_grad()
def mean_metrics(steps: Sequence[Mapping[str, Tensor]], log_clip_range: tuple[float, float] | None) -> dict[str, float]:
    """The mean of each metric over the gradient steps taken, if any, and the numbers of steps taken and skipped.

    Args:
        steps: the :func:`step_metrics` of each gradient step.
        log_clip_range: the range that a clipped objective clips log-ratios to; None for other objectives.

    Raises:
        ConfigError: a step has other metrics than the first one.
    """
    for step in steps:
        if changed := sorted(step.keys() ^ steps[0].keys()):
            advice = "Return the same terms and metrics for each."
            raise ConfigError(f"The loss returns {changed} for some minibatches only. {advice}")
    by_metric = {name: [step[name] for step in steps] for name in steps[0]}
    columns = {name: torch.stack(values) for name, values in by_metric.items() if name not in (_LOG_RATIO, _MASK)}
    if _LOG_RATIO in by_metric:
        # Minibatches may differ in size.
        log_ratio = pad_sequence(by_metric[_LOG_RATIO], batch_first=True)
        mask = pad_sequence(by_metric[_MASK], batch_first=True)
        ratios, _ = weighted(ratio_metrics(log_ratio, mask, log_clip_range), mask.sum(-1).double())
        columns = merged(columns, ratios)
    was_applied_M1 = (columns[STEPS] > 0).unsqueeze(1)
    sums = torch.stack([columns.pop(STEPS).sum(), columns.pop(SKIPPED).sum()])
    means = torch.stack(list(columns.values()), 1).where(was_applied_M1, 0.0).sum(0) / was_applied_M1.sum()
    applied, skipped, *values = torch.cat([sums, means]).tolist()
    return {**(dict(zip(columns, values, strict=True)) if applied else {}), SKIPPED: skipped, STEPS: applied}


def weighted(means: Mapping[str, Tensor], weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Scales each rank's means so that their plain mean is weighted by ``weight``. Also returns the sum of weights."""
    if world().size == 1:
        return dict(means), weight
    total = world().all_gather(weight).sum(0)
    share = weight * world().size / total.clamp(min=torch.finfo(weight.dtype).tiny)
    return {name: value * share for name, value in means.items()}, total
