"""Action distributions that torch lacks: masked, squashed, over vectors, and joint over several parts.

Where torch's ``mode`` does not serve a deterministic policy, they define ``deterministic_sample``.

Shape legend: B batch (any number of dimensions), A action entries, K discrete choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Size, Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal, kl_divergence, register_kl
from torch.distributions.utils import lazy_property
from torch.nn import functional

QUADRATURE_POINTS = 64
NO_SHAPE = Size()


class LazyCategorical(Categorical):
    """torch's Categorical, normalised on demand, and in fewer operations.

    Args:
        unnormalized: ``[B, K]``, log-probabilities up to a constant.
    """

    def __init__(self, unnormalized: Tensor) -> None:
        self.unnormalized = self._param = unnormalized
        self._num_events = unnormalized.shape[-1]
        Distribution.__init__(self, unnormalized.shape[:-1], validate_args=False)

    @lazy_property
    def logits(self) -> Tensor:
        """Log-probabilities ``[B, K]``."""
        return functional.log_softmax(self.unnormalized, -1)

    @lazy_property
    def probs(self) -> Tensor:
        """Probabilities ``[B, K]``."""
        return functional.softmax(self.unnormalized, -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probabilities of choices ``[..., B]``."""
        index = value.long().unsqueeze(-1)
        logits = self.logits if index.ndim == self.logits.ndim else self.logits.expand(*value.shape, self._num_events)
        return logits.gather(-1, index).squeeze(-1)

    def entropy(self) -> Tensor:
        """Entropies ``[B]``, of finite log-probabilities."""
        return -(self.logits.exp() * self.logits).sum(-1)

    def expand(self, batch_shape: Size | Sequence[int], _instance: None = None) -> LazyCategorical:
        """With the batch expanded to ``batch_shape``."""
        return LazyCategorical(self.unnormalized.expand(*batch_shape, self._num_events))

    def sample(self, sample_shape: Any = NO_SHAPE) -> Tensor:
        """Choices ``[B]``, the same as ``torch.multinomial``'s, which spends longer on checking the probabilities.

        Of exponential variables whose rates are the probabilities, each is the smallest with its probability. Where a
        probability is NaN or Inf, so is the log-probability of the choice.
        """
        if sample_shape:
            return super().sample(sample_shape)  # type: ignore[no-untyped-call]
        probs = functional.softmax(self.unnormalized, -1)
        return probs.div_(torch.empty_like(probs).exponential_()).argmax(-1)

    @property
    def deterministic_sample(self) -> Tensor:
        """The most probable choice."""
        return self.unnormalized.argmax(-1)


def categorical(logits: Tensor, mask: Tensor | None = None) -> Distribution:
    """One of K choices from ``logits [B, K]``; those where ``mask`` is zero have probability zero."""
    return LazyCategorical(allowed(logits, mask))


def multi_categorical(sizes: Sequence[int], logits: Tensor, mask: Tensor | None = None) -> Distribution:
    """Several independent choices of ``sizes`` each, from ``logits [B, sum(sizes)]``."""
    widest, lowest = max(sizes), torch.finfo(logits.dtype).min
    # As one distribution over equally many choices, with those that do not exist masked.
    parts = [
        functional.pad(part, (0, widest - size), value=lowest)
        for size, part in zip(sizes, allowed(logits, mask).split(list(sizes), -1), strict=True)
    ]
    return Independent(LazyCategorical(torch.stack(parts, -2)), 1, validate_args=False)


def allowed(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logits that give probability zero to the choices where ``mask`` is zero."""
    # Not −∞, whose product with a probability of zero is NaN.
    return logits if mask is None else logits.masked_fill(mask == 0, torch.finfo(logits.dtype).min)


def diagonal_gaussian(loc: Tensor, scale: Tensor, event_dims: int = 1) -> Distribution:
    """Independent normal entries."""
    return Independent(Normal(loc, scale, validate_args=False), event_dims, validate_args=False)


class Binary(Independent):  # type: ignore[type-arg]
    """Independent bits from ``logits [B, A]``, as int8 like those of Gymnasium's MultiBinary.

    Args:
        logits: of each bit being one.
        event_dims: dimensions of an action.
    """

    def __init__(self, logits: Tensor, event_dims: int = 1) -> None:
        super().__init__(Bernoulli(logits=logits, validate_args=False), event_dims, validate_args=False)

    def sample(self, sample_shape: Any = NO_SHAPE) -> Tensor:
        """Bits ``[B, A]``."""
        return super().sample(sample_shape).to(torch.int8)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability ``[B]``."""
        return super().log_prob(value.to(self.base_dist.logits.dtype))  # type: ignore[no-untyped-call]

    @property
    def deterministic_sample(self) -> Tensor:
        """The more probable value of each bit; zero for a tie, where torch's mode is NaN."""
        return (self.base_dist.logits > 0).to(torch.int8)

    mode = deterministic_sample


class SquashedGaussian(Distribution):
    """The tanh of independent normal variables: actions strictly between −1 and 1.

    TorchRL's TanhNormal estimates its entropy from one sample. Here it is the normal's entropy plus
    ``E[log(1 − tanh²)]``, one integral per entry, by Gauss-Hermite quadrature, which is accurate to 0.001 for standard
    deviations up to 3.

    Args:
        loc: mean before squashing, ``[B, *event]``.
        scale: standard deviation before squashing.
        event_dims: dimensions of an action.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (as torch's Distribution declares it)

    def __init__(self, loc: Tensor, scale: Tensor, event_dims: int = 1) -> None:
        self.base = diagonal_gaussian(loc, scale, event_dims)
        super().__init__(self.base.batch_shape, self.base.event_shape, validate_args=False)

    def sample(self, sample_shape: Any = NO_SHAPE) -> Tensor:
        """Actions ``[B, *event]``."""
        return torch.tanh(self.base.sample(sample_shape))

    def rsample(self, sample_shape: Any = NO_SHAPE) -> Tensor:
        """The same, differentiable with respect to the parameters."""
        return torch.tanh(self.base.rsample(sample_shape))

    has_rsample = True

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability ``[B]``.

        Within ``width`` of ±1 the density is constant: the probability of that end divided by its width. There
        rounding leaves too few digits to invert the tanh. If the inverse were clamped instead, the action would
        seem far from a mean beyond the bound, with a gradient that grows with the distance. This way the gradients for
        an action loc + scale · z are bounded like a Gaussian's: by (y + 1) / scale with respect to the mean and by
        (y + 1)² with respect to log(scale), where y = |z| + 0.05 / scale (rounding changes the inverse by up to 0.05).
        """
        base: Any = self.base
        normal = base.base_dist
        width = 8 * torch.finfo(value.dtype).eps
        before = torch.atanh(value.clamp(width - 1, 1 - width))
        inside = normal.log_prob(before) - _log_slope_of_tanh(before)
        beyond = (normal.loc * value.sign() - math.atanh(1 - width)) / normal.scale
        log_prob = torch.where(value.abs() > 1 - width, torch.special.log_ndtr(beyond) - math.log(width), inside)
        return log_prob.flatten(log_prob.ndim - len(self.event_shape)).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy ``[B]``, in nats."""
        normal: Any = self.base
        loc, scale = normal.base_dist.loc, normal.base_dist.scale
        points, weights = _quadrature(loc)
        log_slope = _log_slope_of_tanh(loc.unsqueeze(-1) + scale.unsqueeze(-1) * points) @ weights
        return self.base.entropy() + log_slope.flatten(loc.ndim - len(self.event_shape)).sum(-1)

    @property
    def deterministic_sample(self) -> Tensor:
        """The median of each entry."""
        return torch.tanh(self.base.mean)

    mode = deterministic_sample


def _log_slope_of_tanh(x: Tensor) -> Tensor:
    """``log(1 − tanh²(x))``, without cancellation for large x."""
    return 2 * (math.log(2) - x - functional.softplus(-2 * x))


def _quadrature(like: Tensor) -> tuple[Tensor, Tensor]:
    """Points and weights for expectations under the standard normal distribution."""
    points, weights = _hermite()
    return like.new_tensor(points), like.new_tensor(weights / math.sqrt(2 * math.pi))


# Finding the points takes a millisecond.
@cache
def _hermite() -> tuple[Any, Any]:
    return np.polynomial.hermite_e.hermegauss(QUADRATURE_POINTS)


class Joint(Distribution):
    """Independent parts of an action, sampled together; log-probability and entropy are sums over the parts.

    Whether tensordict's CompositeDistribution sums them depends on a process-wide setting; every loss needs the sum.

    Args:
        parts: the distribution of each part, by its key within the action.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, parts: Mapping[NestedKey, Distribution]) -> None:
        self.parts = dict(parts)
        super().__init__(next(iter(self.parts.values())).batch_shape, validate_args=False)

    def sample(self, sample_shape: Any = NO_SHAPE) -> TensorDictBase:
        """An action ``[B]`` with one entry per part."""
        shape = Size(sample_shape)
        return TensorDict({key: part.sample(shape) for key, part in self.parts.items()}, shape + self.batch_shape)

    def log_prob(self, value: TensorDictBase) -> Tensor:
        """Log-probability ``[B]``."""
        return torch.stack([part.log_prob(value[key]) for key, part in self.parts.items()]).sum(0)

    def entropy(self) -> Tensor:
        """Entropy ``[B]``, in nats."""
        return torch.stack([part.entropy() for part in self.parts.values()]).sum(0)

    @property
    def deterministic_sample(self) -> TensorDictBase:
        """That of each part."""
        return TensorDict({key: deterministic(part) for key, part in self.parts.items()}, self.batch_shape)

    mode = deterministic_sample


def deterministic(distribution: Distribution) -> Any:
    """The action of a deterministic policy."""
    # That of equally shaped choices too: torch would compare their probabilities, which round to ties.
    for each in (distribution, getattr(distribution, "base_dist", None)):
        chosen = getattr(each, "deterministic_sample", None)
        if chosen is not None:
            return chosen
    return distribution.mode


def sample(distribution: Distribution) -> Any:
    """A random action, differentiable with respect to the distribution's parameters where possible."""
    return distribution.rsample() if distribution.has_rsample else distribution.sample()


def displaced(distribution: Any, noise: Tensor) -> Tensor:
    """The action of a Gaussian, or a squashed one, that is ``noise`` standard deviations off its mean.

    Args:
        distribution: of actions ``[B, *event]``.
        noise: with as many entries.
    """
    squashed = isinstance(distribution, SquashedGaussian)
    normal = (distribution.base if squashed else distribution).base_dist
    action: Tensor = normal.loc + normal.scale * noise.view_as(normal.loc)
    return action.tanh() if squashed else action


def act(distribution: Distribution, deterministic_action: bool) -> tuple[Any, Tensor]:
    """An action and its log-probability."""
    action = deterministic(distribution) if deterministic_action else sample(distribution)
    return action, distribution.log_prob(action)


def log_probs(distributions: Sequence[Distribution], actions: Sequence[Any]) -> Tensor:
    """Log-probabilities ``[B, T]`` of the actions of T steps, each ``[B]`` with its own distribution."""
    first = distributions[0]
    if isinstance(first, LazyCategorical):
        unnormalized = torch.stack([each.unnormalized for each in distributions], 1)  # type: ignore[attr-defined]
        return LazyCategorical(unnormalized).log_prob(torch.stack(list(actions), 1))
    return torch.stack([each.log_prob(action) for each, action in zip(distributions, actions, strict=True)], 1)


@register_kl(SquashedGaussian, SquashedGaussian)  # type: ignore[untyped-decorator]
def _kl_of_squashed(p: SquashedGaussian, q: SquashedGaussian) -> Tensor:
    return kl_divergence(p.base, q.base)  # invariant under invertible maps


@register_kl(Joint, Joint)  # type: ignore[untyped-decorator]
def _kl_of_joint(p: Joint, q: Joint) -> Tensor:
    return torch.stack([kl_divergence(part, q.parts[key]) for key, part in p.parts.items()]).sum(0)
